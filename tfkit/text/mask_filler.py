"""Masked tokens are filled in: a model that was pre-trained on masked text, with its tokeniser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..catalogue import Catalogue
from ..data import TextTokeniser, groups, read_tokenisers, roles_for
from ..data.text_lines import MAX_GROUP
from ..errors import Diagnostic, InputError, Location
from ..errors.arguments import check_list, check_whole
from ..io import load, model_in
from ..nn.evaluating import check_results
from ..nn.model import Model
from .row_reader import RowReader

MAX_TOP = 1000
"""The most tokens for a mask."""


@dataclass(frozen=True)
class Candidate:
    """A token for a mask, as a piece of the vocabulary, and its probability."""

    token: str
    id: int
    probability: float


@dataclass(frozen=True)
class Filling:
    """The masks of a text.

    Attributes:
        text: The text.
        masks: The most probable tokens of each mask, best first; none for a blank text.
        filled: The text with the best token in the place of each mask. Each was chosen alone.
        unknown: The number of tokens without a piece.
    """

    text: str
    masks: tuple[tuple[Candidate, ...], ...]
    filled: str
    unknown: int = 0


class MaskFiller(RowReader):
    """Fills in the masks of texts. Probabilities are the softmax of the logits over the vocabulary, in float32, of each mask
    alone.

    Args:
        model: A model with logits over the vocabulary that reads a text as a whole.
        tokeniser: Its tokeniser.
        max_length: The limit of tokens of a text, special tokens included; at most the positions of the model.
        batch_tokens: The limit of tokens of a batch, padding included.

    Raises:
        InputError: The model is of another kind, or the tokeniser is not its own or has no mask token.
    """

    def __init__(self, model: Model, tokeniser: TextTokeniser, *, max_length: int = 1024, batch_tokens: int = 4096) -> None:
        if tokeniser.mask is None:
            fix = "train the model on data of kind `masked`, or import it with its own tokeniser"
            raise InputError(Diagnostic("TFK138", "the tokeniser has no mask token", fix))
        super().__init__(model, tokeniser, "masked", len(tokeniser.text_frame), 1, max_length, batch_tokens)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        device: str | torch.device = "cpu",
        backend: Any = None,
        max_length: int = 1024,
        batch_tokens: int = 4096,
        allow_nan: bool = False,
        catalogue: Catalogue | None = None,
    ) -> MaskFiller:
        """Load a model that fills in masks.

        Args:
            directory: directory of a saved model, or of a training run, whose best model is loaded.
            device: as in `tfkit.load`.
            backend: as in `tfkit.load`.
            max_length: as in the constructor.
            batch_tokens: as in the constructor.
            allow_nan: as in `tfkit.load`.
            catalogue: as in `tfkit.load`.

        Returns:
            The model with its tokeniser.

        Raises:
            StoreError: a file is missing or altered, or weights are NaN or infinite.
            InputError: as in the constructor.
        """
        place = model_in(Path(directory))
        model = load(place, device=device, backend=backend, allow_nan=allow_nan, catalogue=catalogue).eval()
        roles_for(model.plan, "masked")  # a model of another kind is reported before its missing tokeniser
        tokeniser = read_tokenisers(place, ("target",))["target"]
        return cls(model, tokeniser, max_length=max_length, batch_tokens=batch_tokens)

    def fill(self, texts: Iterable[str], *, top: int = 5, chunk: int = 1000, file: str | None = None) -> Iterator[Filling]:
        """Fill in the masks of texts.

        Args:
            texts: Read `chunk` at a time; every mask is written as the mask token. If the iterable raises an exception, the
                texts before it are filled first.
            top: The number of tokens for each mask, at most; up to 1,000.
            chunk: Texts that are sorted by length and batched together.
            file: The name of the file whose lines they are, for messages.

        Yields:
            The masks of each text, in order.

        Raises:
            InputError: A text has no mask or is longer than the model reads, or the probabilities of a text are NaN.
        """
        check_whole("top", top, largest=MAX_TOP)
        check_list(texts)
        encoded = ((text, self.ids(text, number, file)) for number, text in enumerate(texts, 1))
        for group in groups(encoded, chunk, MAX_GROUP // top):  # each character may be a mask
            yield from self._fill_chunk(group, top)

    def ids(self, text: str, number: int = 1, file: str | None = None) -> list[int]:
        """The ids that the model reads, none for a blank text.

        Args:
            text: The text.
            number: Its number, from 1.
            file: The name of the file whose line it is, for messages.

        Raises:
            InputError: There is no mask in the text, or the text is too long.
        """
        if not text.strip():
            return []
        ids = self.tokeniser.text_frame(self.tokeniser.encode_masked(text))
        reason, fix = "", "shorten it"
        if len(ids) > self.max_length:
            reason = f"has {len(ids):,} tokens, and the model reads {self.max_length:,}"
        elif self.tokeniser.mask_id not in ids:
            reason, fix = "has no mask", f"write `{self.tokeniser.mask}` where a token is to be filled in"
        if reason:
            name, location = ("the text", Location(file, number)) if file else (f"text {number}", None)
            raise InputError(Diagnostic("TFK138", f"{name} {reason}", fix, location=location))
        return ids

    def _fill_chunk(self, rows: list[tuple[str, list[int]]], top: int) -> Iterator[Filling]:
        texts, ids_of = [text for text, _ in rows], [ids for _, ids in rows]
        for text, ids, (probabilities, best) in zip(texts, ids_of, self._best(texts, ids_of, top), strict=True):
            places = [at for at, number in enumerate(ids) if number == self.tokeniser.mask_id]
            unknown, filled = self.tokeniser.count_unknown(ids), list(ids)
            masks = []
            for place, values, numbers in zip(places, probabilities, best, strict=True):
                masks.append(tuple(map(Candidate, self.tokeniser.pieces(numbers), numbers, values)))
                filled[place] = numbers[0]
            yield Filling(text, tuple(masks), self.tokeniser.decode(filled), unknown)

    def _best(self, texts: list[str], rows: list[list[int]], top: int) -> list[tuple[list[list[float]], list[list[int]]]]:
        """The best probabilities of each mask of the rows, and the ids that have them."""
        by_row: list[tuple[list[list[float]], list[list[int]]]] = [([], [])] * len(rows)
        read = [row for row, ids in enumerate(rows) if ids]
        for batch, logits in self.outputs([rows[row] for row in read]):
            for at, row in enumerate(read[number] for number in batch):
                masks = [place for place, number in enumerate(rows[row]) if number == self.tokeniser.mask_id]
                probabilities = logits[at, masks].float().softmax(-1).cpu()
                check_results(probabilities, [texts[row]] * len(masks))
                values, best = probabilities.topk(min(top, probabilities.shape[1]))
                by_row[row] = values.tolist(), best.tolist()
        return by_row
