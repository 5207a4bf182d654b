"""Models that read a row of tokens at once: classifiers, taggers and models that answer by spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..data import TextTokeniser, check_ids, epoch_of, padded, roles_for
from ..errors.arguments import check_whole
from ..nn.evaluating import evaluating
from ..nn.model import Model


class RowReader:
    """A model with its tokeniser, and the limits of what it reads: rows of `texts` texts with `special` special tokens, of
    `max_length` tokens with these, at most the positions of the model; batches of `batch_tokens` with padding. Raises
    InputError if the model is of another kind, the tokeniser is not its own, or a limit is too small."""

    def __init__(
        self, model: Model, tokeniser: TextTokeniser, kind: str, special: int, texts: int, max_length: int, batch_tokens: int
    ) -> None:
        check_whole("max_length", max_length, special + texts)  # one token of each text
        check_whole("batch_tokens", batch_tokens)
        self.model, self.tokeniser, self.batch_tokens = model, tokeniser, batch_tokens
        self.roles = roles_for(model.plan, kind)
        self.max_length = min(max_length, model.plan.max_input_lengths.get(self.roles.target, max_length))
        check_ids(model.plan, self.roles, {"target": tokeniser})

    def outputs(
        self, rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] = ()
    ) -> Iterator[tuple[NDArray[np.signedinteger[Any]], Tensor]]:
        """The numbers of the rows of each batch, which are of similar length, and the output of the model for them. The
        segments of rows count for a model that has some."""
        if not rows:
            return
        lengths = {"target": np.array([len(ids) for ids in rows], np.int32)}
        device, name = self.model.device, self.roles.target
        for batch in epoch_of(lengths, self.batch_tokens, 0, 0).batches:
            ids, counts = padded([rows[row] for row in batch])
            call: dict[str, Any] = {name: ids.to(device), "lengths": {name: counts.to(device)}}
            if segments and self.roles.segments:
                call["segments"] = {name: padded([segments[row] for row in batch], 0)[0].to(device)}
            with evaluating(self.model):
                output = self.model(**call)[self.roles.output]
            yield batch, output
