"""Text that goes on: a decoder-only model with the tokeniser that it was trained with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..catalogue import Catalogue
from ..data import TextTokeniser, read_tokenisers
from ..errors import Fault, InputError
from ..generate import Hypothesis, Search, search_all
from ..nn.model import Model
from ..store import load
from .fitting import roles_for
from .translator import model_in


@dataclass(frozen=True)
class Continuation:
    """`text` is what the model wrote after `prompt`."""

    prompt: str
    text: str
    hypothesis: Hypothesis


class TextGenerator:
    """Continues prompts as a search says. The model is put into evaluation mode for it, and back."""

    def __init__(self, model: Model, tokeniser: TextTokeniser) -> None:
        self.model, self.tokeniser = model, tokeniser
        self.roles = roles_for(model.plan, "language")

    @classmethod
    def load(
        cls, directory: str | Path, *, device: str | torch.device = "cpu", backend: Any = None,
        catalogue: Catalogue | None = None,
    ) -> TextGenerator:  # fmt: skip
        """The generator of a model that `tfkit train` made, or of the best model of a run. Raises StoreError, InputError."""
        place = model_in(Path(directory))
        model = load(place, device=device, backend=backend, catalogue=catalogue)
        return cls(model, read_tokenisers(place, ("target",))["target"])

    def continue_all(self, prompts: Sequence[str], search: Search, *, batch_tokens: int = 4096) -> list[list[Continuation]]:
        """The continuations of every prompt, best first. Raises InputError for a prompt without a token."""
        encoded = self.tokeniser.encode(list(prompts))
        for number, ids in enumerate(encoded):
            if not ids:
                raise InputError(Fault("TFK077", f"prompt {number} is empty", "a decoder needs something to go on from"))
        training = self.model.training
        self.model.eval()
        try:
            found = search_all(
                self.model, encoded, search, batch_tokens=batch_tokens, target=self.roles.target, output=self.roles.output
            )
        finally:
            self.model.train(training)
        return [
            [Continuation(prompt, self._tail(ids, each), each) for each in made]
            for prompt, ids, made in zip(prompts, encoded, found, strict=True)
        ]

    def _tail(self, ids: list[int], made: Hypothesis) -> str:
        """What was added to the text of the prompt: bytes of one character may lie on both sides of its end."""
        whole, before = self.tokeniser.decode([*ids, *made.ids.tolist()]), self.tokeniser.decode(ids)
        return whole.removeprefix(before)
