"""The columns of a search whose rows may get some ids only: those of a shortlist. Only their logits are computed.

Logits have a column for every id that some row may get, C instead of V, in the order of the ids. The columns that a row may not
get are -inf, so its tokens and log-probabilities do not depend on the other rows of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import Diagnostic, InputError
from ..errors.arguments import in_words
from ..slots.node import InputRule

INTEGERS = (torch.int64, torch.int32)


@dataclass(frozen=True)
class Columns:
    """The ids of a search.

    Args:
        ids: (C,) in increasing order.
        allowed: (B, C) which of them each row may get; None if every row may get all.
        vocab_size: the number of ids of the vocabulary.
    """

    ids: Tensor
    allowed: Tensor | None
    vocab_size: int

    def read(self, logits: Tensor, rows: Tensor, *, whole: bool = False) -> Tensor:
        """The logits that a search sees.

        Args:
            logits: (R, C).
            rows: (R,) the numbers of the rows in the batch of the search.
            whole: whether the search needs a column for every id of the vocabulary, as score filters do.

        Returns:
            (R, C), or with `whole` (R, V); -inf for what a row may not get.
        """
        if self.allowed is not None:
            logits = logits.masked_fill(~self.allowed[rows], -torch.inf)
        if whole:
            logits = logits.new_full((len(logits), self.vocab_size), -torch.inf).index_copy_(1, self.ids, logits)
        return logits

    def repeated(self, rows: Tensor) -> Columns:
        """The columns of a batch whose rows are the rows (R,) of this one."""
        return replace(self, allowed=None if self.allowed is None else self.allowed[rows])

    def lists(self, never: Tensor, end_id: int | None, batch: int) -> Tensor | None:
        """The ids of each row (B, L) in the order in which recorded steps search: first those of `never` (F,) that it may get,
        then the end token, then the others; -1 for none. None if the end token is not the smallest of the others, so that it
        would win against an equal logit."""
        lists = []
        for row in range(batch):
            ids = self.ids if self.allowed is None else self.ids[self.allowed[row]]
            others = ids[~torch.isin(ids, never)]
            if end_id is not None and (not len(others) or int(others[0]) != end_id):
                return None
            lists.append(torch.cat([torch.where(torch.isin(never, ids), never, -1), others]))
        return torch.nn.utils.rnn.pad_sequence(lists, batch_first=True, padding_value=-1)

    def places(self, ids: Tensor) -> Tensor:
        """The columns of those of some ids (N,) that have one."""
        return torch.isin(self.ids, ids).nonzero()[:, 0]


def columns_of(shortlists: Any, prefixes: Any, rule: InputRule, batch: int, device: torch.device) -> Columns:
    """The columns of a search.

    Args:
        shortlists: for each row the ids that it may get. The end token is always one, and so are the ids of its prefix.
        prefixes: the ids that each row begins with, or None.
        rule: the ids of the target.
        batch: the number of rows.
        device: of the model.

    Raises:
        InputError: there is not one list of ids for each row, or an id is none of the vocabulary.
    """
    if isinstance(shortlists, (str, bytes)) or not isinstance(shortlists, Sequence) or len(shortlists) != batch:
        message = f"shortlists is {in_words(shortlists)}, and there are {batch} rows"
        raise InputError(Diagnostic("TFK078", message, "give one list of ids for each row"))
    always = torch.tensor([] if rule.end_id is None else [rule.end_id], dtype=torch.int64, device="cpu")
    rows: list[Tensor] = []
    for row, shortlist in enumerate(shortlists):
        ids = shortlist
        if isinstance(ids, Sequence) and all(type(one) is int for one in ids):
            ids = torch.tensor(ids, dtype=torch.int64, device="cpu")
        if not isinstance(ids, Tensor) or ids.dim() != 1 or ids.dtype not in INTEGERS:
            raise InputError(
                Diagnostic("TFK078", f"the shortlist of row {row} is {in_words(shortlist)}", "it is a list of ids")
            )
        ids = torch.cat([ids.to("cpu", torch.int64), always])
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < rule.vocab_size:
            beyond = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
            message = f"the shortlist of row {row} holds the id {beyond}"
            raise InputError(Diagnostic("TFK072", message, f"ids are 0..{rule.vocab_size - 1}"))
        if not len(ids):
            message = f"the shortlist of row {row} is empty, and the model has no end token"
            raise InputError(Diagnostic("TFK078", message, "a row needs an id that it may get"))
        rows.append(torch.cat([ids, _forced(prefixes, row, rule.vocab_size)]))
    ids = torch.cat(rows).unique()  # type: ignore[no-untyped-call]
    if batch == 1:
        return Columns(ids.to(device), None, rule.vocab_size)
    allowed = torch.zeros(batch, len(ids), dtype=torch.bool, device="cpu")
    for one, shortlist in zip(allowed, rows, strict=True):
        one[torch.searchsorted(ids, shortlist)] = True
    return Columns(ids.to(device), None if bool(allowed.all()) else allowed.to(device), rule.vocab_size)


def places_in(lists: Tensor, ids: Tensor) -> Tensor:
    """The places of ids (B, N) in the lists (B, L) of their rows."""
    return (lists[:, None] == ids[:, :, None]).to(torch.int8).argmax(2)


def _forced(prefixes: Any, row: int, vocab_size: int) -> Tensor:
    """The ids of the prefix of a row. A wrong prefix has none here: `forced_ids` names what is wrong."""
    try:
        ids = [one for one in prefixes[row] if type(one) is int and 0 <= one < vocab_size]
    except (TypeError, IndexError, KeyError):
        ids = []
    return torch.tensor(ids, dtype=torch.int64, device="cpu")
