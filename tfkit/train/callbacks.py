"""How far a run has come, and who is told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..errors import Diagnostic
from ..slots.options import AsTuple

MOST = (1 << 53) - 1
"""The largest whole number of a file of a run; floats tell all up to it apart."""
Whole = Annotated[int, Field(ge=0, le=MOST)]
Count = Annotated[int, Field(ge=1, le=MOST)]


class Progress(BaseModel):
    """All that a run knows about itself beside tensors. `batch` is the number of batches of `epoch` that are done, `stale` the
    validations since the best, `kept` worth and step of the models that are kept, `validated` the step of the last validation,
    `seconds` the time that the commands have taken which worked on the run, start-up and validation included."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    step: Whole = 0
    epoch: Count = 1
    batch: Whole = 0
    source_tokens: Whole = 0
    target_tokens: Whole = 0
    best: float | None = None
    best_step: Whole | None = None
    stale: Whole = 0
    seconds: Annotated[float, Field(ge=0, le=MOST)] = 0.0
    kept: list[Annotated[tuple[float, Whole], AsTuple]] = []
    validated: Whole = 0

    @model_validator(mode="after")
    def _agrees(self) -> Progress:
        latest = max([self.validated, self.best_step or 0, *(step for _, step in self.kept)])
        if latest > self.step:
            raise ValueError(f"step {latest} was validated, and {self.step} were made")
        if (self.best is None) != (self.best_step is None):
            raise ValueError("`best` and `best_step` belong together")
        return self


@dataclass(frozen=True)
class Step:
    """One step: `loss` (smoothed) and `nll` in nats per target token, the learning `rate`, the `norm` of the gradient before it
    was clipped, tokens without padding, and the seconds that it took."""

    step: int
    epoch: int
    loss: float
    nll: float
    rate: float
    norm: float
    source_tokens: int
    target_tokens: int
    seconds: float

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nll, 700.0))


@dataclass(frozen=True)
class Validated:
    """One validation: `nll` in nats per target token, unsmoothed; `scores` by name (BLEU, chrF) with their `signatures`;
    `best` says whether it was the best so far."""

    step: int
    epoch: int
    nll: float
    scores: dict[str, float]
    signatures: dict[str, str]
    best: bool
    seconds: float
    sample: tuple[str, str, str] | None = None

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nll, 700.0))


class Callback(Protocol):
    """Is told what happens during training. `began` is given the trainer, and what was changed in the spec."""

    def began(self, trainer: Any, changes: list[str]) -> None: ...

    def stepped(self, step: Step) -> None: ...

    def validated(self, result: Validated) -> None: ...

    def saved(self, step: int, path: Path) -> None: ...

    def trouble(self, diagnostics: tuple[Diagnostic, ...]) -> None: ...

    def ended(self, reason: str, model: Path) -> None: ...
