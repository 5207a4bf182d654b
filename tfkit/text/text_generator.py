"""Text that goes on: a decoder-only model with the tokeniser that it was trained with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..catalogue import Catalogue
from ..data import TextTokeniser, read_tokenisers
from ..generate import Hypothesis, Search, generate_batched
from ..io import load, model_in
from ..nn.model import Model
from .fitting import roles_for


@dataclass(frozen=True)
class Continuation:
    """`text` is what the model wrote after `prompt`; of that the last `read` tokens were read, and the first `cut` were not."""

    prompt: str
    text: str
    hypothesis: Hypothesis
    read: int
    cut: int


class TextGenerator:
    """Continues prompts as a search says. The model is put into evaluation mode for it, and back.

    `positions` is the most tokens that the model has positions for, None where there is no end to them. Of a prompt of more
    tokens the last ones are read: as many as leave room for what the search may add, and half of the positions at least.
    """

    def __init__(self, model: Model, tokeniser: TextTokeniser) -> None:
        self.model, self.tokeniser = model, tokeniser
        self.roles = roles_for(model.plan, "language")
        self.positions = model.plan.max_input_lengths.get(self.roles.target)

    @classmethod
    def load(
        cls, directory: str | Path, *, device: str | torch.device = "cpu", backend: Any = None,
        catalogue: Catalogue | None = None,
    ) -> TextGenerator:  # fmt: skip
        """The generator of a model that `tfkit train` made, or of the best model of a run. Raises StoreError, InputError."""
        place = model_in(Path(directory))
        model = load(place, device=device, backend=backend, catalogue=catalogue)
        return cls(model, read_tokenisers(place, ("target",))["target"])

    def continue_all(
        self, prompts: Sequence[str], search: Search, *, batch_tokens: int = 4096, workers: int = 1
    ) -> list[list[Continuation]]:
        """The continuations of every prompt, best first; none of a prompt without a token. `batch_tokens` and `workers` are
        those of `generate_batched`."""
        encoded = self.tokeniser.encode(list(prompts))
        read = [self._read(ids, search) for ids in encoded]
        told = [number for number, ids in enumerate(encoded) if ids]
        training = self.model.training
        self.model.eval()
        try:
            found = generate_batched(
                self.model, [read[number] for number in told], search, batch_tokens=batch_tokens, target=self.roles.target,
                output=self.roles.output, workers=workers,
            )  # fmt: skip
        finally:
            self.model.train(training)
        hypotheses = dict(zip(told, found, strict=True))
        return [
            [
                Continuation(prompt, self._tail(ids, each), each, len(ids), len(whole) - len(ids))
                for each in hypotheses.get(number, ())
            ]
            for number, (prompt, whole, ids) in enumerate(zip(prompts, encoded, read, strict=True))
        ]

    def _read(self, ids: list[int], search: Search) -> list[int]:
        """What is read of a prompt."""
        most = self.positions
        if most is None or len(ids) <= most:
            return ids
        return ids[-max(most + 1 - search.limit(len(ids)), (most + 1) // 2) :]  # the last new token has no position

    def _tail(self, ids: list[int], made: Hypothesis) -> str:
        """What was added to the text of the prompt: bytes of one character may lie on both sides of its end."""
        whole, before = self.tokeniser.decode([*ids, *made.ids.tolist()]), self.tokeniser.decode(ids)
        return whole.removeprefix(before)
