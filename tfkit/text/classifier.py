"""Text classification: a model with its tokeniser and its labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..catalogue import Catalogue
from ..data import (
    Frame,
    TextTokeniser,
    check_classes,
    fits,
    groups,
    has_labels,
    other_use,
    read_labels,
    read_tokenisers,
    reads_pairs,
    roles_for,
)
from ..errors import Diagnostic, InputError
from ..errors.arguments import check_list
from ..io import load, model_in
from ..nn.evaluating import check_results
from ..nn.model import Model
from .row_reader import RowReader


@dataclass(frozen=True)
class Classification:
    """The class of a text.

    Attributes:
        text: The text; for a pair both, with a tab between them.
        label: The most probable class; None for a text without a token.
        probability: Its probability; None for a text without a token.
        read: The number of tokens that the model read, special tokens included.
        cut: The number of tokens beyond the limit, which it did not read.
        labels: All classes, in the order of the model's output.
        distribution: Their probabilities; empty for a text without a token.
        unknown: The number of tokens without a piece.
    """

    text: str
    label: str | None
    probability: float | None
    read: int
    cut: int
    labels: tuple[str, ...]
    distribution: tuple[float, ...]
    unknown: int = 0

    @property
    def probabilities(self) -> dict[str, float]:
        """The probability of every label; empty for a text without a token."""
        return dict(zip(self.labels, self.distribution, strict=False))


class Classifier(RowReader):
    """Classifies lines of text, or pairs of texts. Probabilities are the softmax of the logits, in float32.

    Args:
        model: A classifier.
        tokeniser: Its tokeniser.
        labels: Its classes, in the order of its output.
        max_length: The limit of tokens of a text, special tokens included; at most the positions of the model.
        batch_tokens: The limit of tokens of a batch, padding included.
        pairs: Whether it classifies pairs of texts.

    Raises:
        InputError: The model is of another kind, or the tokeniser or the labels are not its own.
    """

    def __init__(
        self,
        model: Model,
        tokeniser: TextTokeniser,
        labels: Sequence[str],
        *,
        max_length: int = 1024,
        batch_tokens: int = 4096,
        pairs: bool = False,
    ) -> None:
        self.labels, self.pairs = tuple(labels), pairs
        self.frame = tokeniser.pair_frame if pairs else tokeniser.text_frame
        kind = "pairs" if pairs else "classification"
        super().__init__(model, tokeniser, kind, len(self.frame), 1 + pairs, max_length, batch_tokens)
        check_classes(model.plan, self.roles, self.labels)

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
    ) -> Classifier:
        """Load a classifier.

        Args:
            directory: directory of a saved model, or of a training run, whose best model is loaded.
            device: as in `tfkit.load`.
            backend: as in `tfkit.load`.
            max_length: as in the constructor.
            batch_tokens: as in the constructor.
            allow_nan: as in `tfkit.load`.
            catalogue: as in `tfkit.load`.

        Returns:
            The classifier.

        Raises:
            StoreError: a file is missing or altered, or weights are NaN or infinite.
            InputError: the model is no classifier.
        """
        place = model_in(Path(directory))
        model = load(place, device=device, backend=backend, allow_nan=allow_nan, catalogue=catalogue).eval()
        roles_for(model.plan, "classification")  # a model of another kind is reported before its missing labels
        if not has_labels(place) and fits(model.plan, "masked"):
            raise other_use(model.plan, "classification", "masked")
        tokeniser = read_tokenisers(place, ("target",))["target"]
        labels, pairs = read_labels(place), reads_pairs(place)
        return cls(model, tokeniser, labels, max_length=max_length, batch_tokens=batch_tokens, pairs=pairs)

    def classify(self, lines: Iterable[str | tuple[str, str]], *, chunk: int = 1000) -> Iterator[Classification]:
        """Classify lines, or pairs of texts.

        Args:
            lines: Texts; for a classifier of pairs, tuples of two texts. They are read `chunk` at a time. If the iterable
                raises an exception, the lines before it are classified first.
            chunk: Lines that are sorted by length and batched together.

        Yields:
            The class of each line, in order. A line with an empty text has none.

        Raises:
            InputError: A pair is given to a classifier of texts, or a text to one of pairs; or the probabilities of a text
                are NaN.
        """
        check_list(lines)
        for group in groups((self._sides(line) for line in lines), chunk):
            yield from self._classify_chunk(group)

    def _sides(self, line: str | tuple[str, str]) -> tuple[str, ...]:
        """The texts of a line."""
        sides = (line,) if isinstance(line, str) else tuple(line)
        if len(sides) != 1 + self.pairs:
            message = f"a line has {len(sides)} {'text' if len(sides) == 1 else 'texts'}"
            fix = "give tuples of two texts" if self.pairs else "give one text for each line"
            raise InputError(Diagnostic("TFK115", message, fix))
        return sides

    def _classify_chunk(self, lines: list[tuple[str, ...]]) -> Iterator[Classification]:
        encoded = list(zip(*map(self.tokeniser.encode, map(list, zip(*lines, strict=True))), strict=True))
        texts, segments = map(list, zip(*map(self._ids, encoded), strict=True))
        nonempty = [number for number, sides in enumerate(encoded) if all(sides)]
        logits = self._all_logits(*([part[number] for number in nonempty] for part in (texts, segments)))
        probabilities = logits.softmax(-1)
        check_results(probabilities, ["\t".join(lines[number]) for number in nonempty])
        rows = dict(zip(nonempty, zip(logits.argmax(-1).tolist(), probabilities.tolist(), strict=True), strict=True))
        for number, (line, sides) in enumerate(zip(lines, encoded, strict=True)):
            text, read = "\t".join(line), len(texts[number])
            if number not in rows:
                yield Classification(text, None, None, 0, 0, self.labels, ())
                continue
            best, distribution = rows[number]
            cut = sum(map(len, sides)) + len(self.frame) - read
            unknown = sum(map(self.tokeniser.count_unknown, sides))
            label, probability = self.labels[best], distribution[best]
            yield Classification(text, label, probability, read, cut, self.labels, tuple(distribution), unknown)

    def _ids(self, sides: Sequence[list[int]]) -> tuple[list[int], list[int]]:
        """The ids that the model reads, and the segments of a pair. Of a pair that is too long, the longer text is cut."""
        room, frame = self.max_length - len(self.frame), self.frame
        if isinstance(frame, Frame):
            return frame(sides[0][:room]), []
        first, second = map(len, sides)
        half = min(first, max(room - second, -(-room // 2)))
        first, second = half, min(second, room - half)
        return frame(sides[0][:first], sides[1][:second]), frame.segments_of(first, second)

    def _all_logits(self, texts: list[list[int]], segments: list[list[int]]) -> Tensor:
        """The logits of all classes (N, classes), for each text."""
        logits = torch.empty(len(texts), len(self.labels), device="cpu")
        for batch, of_batch in self.outputs(texts, segments if self.pairs else ()):
            logits[batch] = of_batch.float().cpu()
        return logits
