"""Score filters in a search. Greedy decoding and sampling filter logits, a beam search log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import Diagnostic, InputError
from ..errors.arguments import in_words
from ..nn.prefix import Prefix
from ..slots.lazy import load
from ..slots.options import Component
from ..slots.score_filter import ScoreFilter
from .prefill import GenerationState

Filter = Component | Callable[[Tensor, Prefix], Tensor]
"""A part of the slot `score_filter` with its options, or a function of the scores (R, V) and the prefix."""


SUPPRESS = "tfkit.builtin.score_filter.filters:suppress"
MAX_LEFT_OUT = 8
"""The most tokens that are forbidden by leaving them out of the best continuations, instead of by changing all scores."""


class ScoreFilters:
    """The filters of one search, applied in their order, and the tokens that each row begins with. `bool` of it says whether
    there are any."""

    def __init__(self, filters: Sequence[Filter], forced: Tensor | None = None) -> None:
        self.functions = [_function(one) for one in filters]
        self.filters, self.forced = filters, forced

    def __bool__(self) -> bool:
        return bool(self.functions) or self.forced is not None

    def __call__(self, scores: Tensor, prefix: Prefix, rows: Tensor) -> Tensor:
        """The filtered scores (R, V) of the next token.

        A token that a row begins with keeps its score, whatever the filters say, and all others are forbidden.

        Args:
            scores: (R, V).
            prefix: the tokens before.
            rows: (R,) the numbers of the rows in the batch of the search.

        Raises:
            InputError: a filter returns something else than scores of that shape and dtype.
        """
        if self.forced is None or prefix.generated >= self.forced.shape[1]:
            return self._filtered(scores, prefix)
        token = self.forced[rows, prefix.generated][:, None]  # (R, 1), -1 where a row is free
        place = token.clamp(min=0)
        only = torch.full_like(scores, -torch.inf).scatter(1, place, scores.gather(1, place))
        return torch.where(token >= 0, only, self._filtered(scores, prefix))

    def few_forbidden(self, vocab_size: int) -> Tensor | None:
        """The ids (F,) of a few tokens of the vocabulary, if all that the filters do is to forbid these; otherwise None."""
        ids: set[int] = set()
        for one in self.filters:
            if not isinstance(one, Component) or one.entry.function != SUPPRESS:
                return None
            ids |= set(one.options.ids)
        few = 0 < len(ids) <= min(MAX_LEFT_OUT, vocab_size - 1) and max(ids) < vocab_size and self.forced is None
        return torch.tensor(sorted(ids), device="cpu") if few else None

    def _filtered(self, scores: Tensor, prefix: Prefix) -> Tensor:
        for function in self.functions:
            filtered = function(scores, prefix)
            if not isinstance(filtered, Tensor) or filtered.shape != scores.shape or filtered.dtype != scores.dtype:
                expected = f"{tuple(scores.shape)} {scores.dtype}"
                got = f"{tuple(filtered.shape)} {filtered.dtype}" if isinstance(filtered, Tensor) else in_words(filtered)
                message = f"a score filter returned {got} for scores {expected}"
                raise InputError(Diagnostic("TFK078", message, "return scores of the same shape and dtype"))
            scores = filtered
        return scores


NO_FILTERS = ScoreFilters(())


def filters_of(filters: Any, forced: Tensor | None = None) -> ScoreFilters:
    """The filters that a caller gives; `forced` (B, N) are the ids that the rows begin with, -1 where they are free. Raises
    InputError unless the filters are a list of filters."""
    if isinstance(filters, (str, bytes)) or not isinstance(filters, Sequence):
        message = f"filters is {in_words(filters)}"
        raise InputError(Diagnostic("TFK078", message, 'give a list: [tfkit.score_filter("min_tokens", tokens=5)]'))
    for one in filters:
        if not (isinstance(one.entry, ScoreFilter) if isinstance(one, Component) else callable(one)):
            message = f"a filter is {in_words(one)}"
            raise InputError(
                Diagnostic("TFK078", message, "it is a tfkit.score_filter(...), or a function of scores and prefix")
            )
    return ScoreFilters(filters, forced)


def _function(one: Filter) -> Callable[[Tensor, Prefix], Tensor]:
    if not isinstance(one, Component):
        return one
    function: Callable[[Tensor, Prefix, Any], Tensor] = load(one.entry.function)
    return lambda scores, prefix: function(scores, prefix, one.options)


def check_filters(filters: Sequence[Filter], vocab_size: int, end_id: int | None) -> None:
    """Raises InputError for filters that name an id beyond a vocabulary, or that leave no first token."""
    scores, rows = torch.zeros(1, vocab_size, device="cpu"), torch.zeros(1, dtype=torch.int64, device="cpu")
    prefix = Prefix(torch.zeros(1, 1, dtype=torch.int64, device="cpu"), 0, torch.full((1,), 9, device="cpu"), end_id)
    refuse_dead_ends(ScoreFilters(filters)(scores, prefix, rows).amax(1) == -torch.inf, rows, 0)


def forced_ids(prefixes: Any, start: GenerationState) -> Tensor | None:
    """The ids that each row begins with, as a tensor (B, N), or None if no row has any. Shorter rows are filled up with -1.

    Raises:
        InputError: they are not one list of ids for each row, or hold the end token, or leave a row no token of its own.
    """
    if prefixes is None:
        return None
    batch, rule = start.decoding.batch, start.rule
    if isinstance(prefixes, (str, bytes)) or not isinstance(prefixes, Sequence) or len(prefixes) != batch:
        message = f"prefixes is {in_words(prefixes)}, and there are {batch} rows"
        raise InputError(Diagnostic("TFK078", message, "give one list of ids for each row, which may be empty"))
    for row, (ids, limit) in enumerate(zip(prefixes, start.limits.tolist(), strict=True)):
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Sequence) or not all(type(one) is int for one in ids):
            raise InputError(Diagnostic("TFK078", f"the prefix of row {row} is {in_words(ids)}", "it is a list of ids"))
        if beyond := [one for one in ids if not 0 <= one < rule.vocab_size]:
            message = f"the prefix of row {row} holds the id {beyond[0]}"
            raise InputError(Diagnostic("TFK072", message, f"ids are 0..{rule.vocab_size - 1}"))
        if rule.end_id in ids:
            message = f"the prefix of row {row} holds the end token {rule.end_id}"
            raise InputError(Diagnostic("TFK078", message, "leave it out: what comes after it would never be read"))
        if len(ids) >= limit:
            message = f"the prefix of row {row} has {len(ids):,} tokens, and the row gets at most {limit:,}"
            raise InputError(Diagnostic("TFK078", message, "shorten the prefix, or allow more tokens"))
    longest = max(map(len, prefixes))
    forced = torch.full((batch, longest), -1, dtype=torch.int64, device="cpu")
    for row, ids in enumerate(prefixes):
        forced[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64, device="cpu")
    return forced.to(start.logits.device) if longest else None


def refuse_dead_ends(dead: Tensor, rows: Tensor, step: int) -> None:
    """Raises InputError if the filters leave a row no token.

    Args:
        dead: (R,) bool, rows without an allowed token.
        rows: (R,) the numbers of the rows.
        step: the number of the token.
    """
    if bool(dead.any()):
        row = int(rows[dead][0])
        message = f"the score filters forbid every token of row {row} at token {step} whose probability is above 0"
        raise InputError(Diagnostic("TFK078", message, "leave a filter out, or let it allow the end token"))
