"""Text classification: a model with its tokeniser and its labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..catalogue import Catalogue
from ..data import TextTokeniser, check_ids, epoch_of, groups, padded, read_labels, read_tokenisers
from ..errors import Diagnostic, InputError
from ..io import load, model_in
from ..nn.model import Model
from ..recipe import END, START
from .fitting import roles_for


@dataclass(frozen=True)
class Classification:
    """The class of a text.

    Attributes:
        text: The text.
        label: The most probable class; None for a text without a token.
        probability: Its probability; None for a text without a token.
        read: The number of tokens that the model read, start and end included.
        cut: The number of tokens beyond the limit, which it did not read.
        labels: All classes, in the order of the model's output.
        distribution: Their probabilities; empty for a text without a token.
    """

    text: str
    label: str | None
    probability: float | None
    read: int
    cut: int
    labels: tuple[str, ...]
    distribution: tuple[float, ...]

    @property
    def probabilities(self) -> dict[str, float]:
        """The probability of every label; empty for a text without a token."""
        return dict(zip(self.labels, self.distribution, strict=False))


class Classifier:
    """Classifies lines of text. Probabilities are the softmax of the logits, in float32.

    Args:
        model: A classifier.
        tokeniser: Its tokeniser.
        labels: Its classes, in the order of its output.
        max_length: The limit of tokens of a text, start and end included; at most the positions of the model.
        batch_tokens: The limit of tokens of a batch, padding included.

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
    ) -> None:
        self.model, self.tokeniser, self.labels = model, tokeniser, tuple(labels)
        self.batch_tokens = batch_tokens
        if max_length < 3 or batch_tokens < 1:
            message = f"max_length is {max_length}, batch_tokens is {batch_tokens}"
            raise InputError(
                Diagnostic("TFK078", message, "a text has at least 3 tokens with start and end, a batch at least 1")
            )
        self.roles = roles_for(model.plan, "classification")
        self.max_length = min(max_length, model.plan.max_input_lengths.get(self.roles.target, max_length))
        check_ids(model.plan, self.roles, {"target": tokeniser.size})
        classes = model.plan.widths[self.roles.output]
        if classes != len(self.labels):
            message = f"`{self.roles.output}` has {classes} classes, and there are {len(self.labels)} labels"
            raise InputError(Diagnostic("TFK116", message, "give a label for every class, in the order of the output"))

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        device: str | torch.device = "cpu",
        backend: Any = None,
        max_length: int = 1024,
        batch_tokens: int = 4096,
        catalogue: Catalogue | None = None,
    ) -> Classifier:
        """Load a classifier.

        Args:
            directory: directory of a saved model, or of a training run, whose best model is loaded.
            device: as in `tfkit.load`.
            backend: as in `tfkit.load`.
            max_length: as in the constructor.
            batch_tokens: as in the constructor.
            catalogue: as in `tfkit.load`.

        Returns:
            The classifier.

        Raises:
            StoreError: a file is missing or altered.
            InputError: the model is no classifier.
        """
        place = model_in(Path(directory))
        model = load(place, device=device, backend=backend, catalogue=catalogue)
        roles_for(model.plan, "classification")  # a model of another kind is reported before its missing labels
        tokeniser = read_tokenisers(place, ("target",))["target"]
        return cls(model, tokeniser, read_labels(place), max_length=max_length, batch_tokens=batch_tokens)

    def classify(self, lines: Iterable[str], *, chunk: int = 1000) -> Iterator[Classification]:
        """Classify lines.

        Args:
            lines: Read `chunk` at a time. If the iterable raises an exception, the lines before it are classified first.
            chunk: Lines that are sorted by length and batched together.

        Yields:
            The class of each line, in order.
        """
        for group in groups(lines, chunk):
            yield from self._classify_chunk(group)

    def _classify_chunk(self, lines: list[str]) -> Iterator[Classification]:
        encoded = self.tokeniser.encode(lines)
        texts = [[START, *ids[: self.max_length - 2], END] for ids in encoded]
        nonempty = [number for number, ids in enumerate(encoded) if ids]
        rows = dict(zip(nonempty, self._classify([texts[number] for number in nonempty]), strict=True))
        for number, (line, ids) in enumerate(zip(lines, encoded, strict=True)):
            cut = max(len(ids) + 2 - self.max_length, 0)
            if number not in rows:
                yield Classification(line, None, None, 0, 0, self.labels, ())
                continue
            best, distribution = rows[number]
            label, probability = self.labels[best], distribution[best]
            yield Classification(line, label, probability, len(texts[number]), cut, self.labels, tuple(distribution))

    @torch.no_grad()
    def _classify(self, texts: list[list[int]]) -> list[tuple[int, list[float]]]:
        """The most probable class and the probabilities of all classes, for each text."""
        if not texts:
            return []
        lengths = np.array([len(ids) for ids in texts], np.int32)
        logits = torch.empty(len(texts), len(self.labels))
        training = self.model.training
        self.model.eval()
        try:
            for batch in epoch_of({"target": lengths}, self.batch_tokens, 0, 0).batches:
                logits[batch] = self._logits([texts[row] for row in batch]).float().cpu()
        finally:
            self.model.train(training)
        return list(zip(logits.argmax(-1).tolist(), logits.softmax(-1).tolist(), strict=True))

    def _logits(self, texts: list[list[int]]) -> Tensor:
        ids, counts = padded(texts)
        device, name = next(self.model.parameters()).device, self.roles.target
        return self.model(lengths={name: counts.to(device)}, **{name: ids.to(device)})[self.roles.output]  # type: ignore[no-any-return]
