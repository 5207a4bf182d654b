"""How far a run has come, and who is told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..errors import Fault


@dataclass
class Progress:
    """All that a run knows about itself beside tensors. `batch` is the number of batches of `epoch` that are done, `stale` the
    validations since the best, `kept` worth and step of the models that are kept, `validated` the step of the last validation,
    `seconds` the time spent by all the processes that worked on the run."""

    step: int = 0
    epoch: int = 1
    batch: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    best: float | None = None
    best_step: int | None = None
    stale: int = 0
    seconds: float = 0.0
    kept: list[tuple[float, int]] = field(default_factory=list)
    validated: int = 0


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


class Watcher(Protocol):
    """Is told what happens during training. `began` is given the trainer, and what was changed in the spec."""

    def began(self, trainer: Any, changes: list[str]) -> None: ...

    def stepped(self, step: Step) -> None: ...

    def validated(self, result: Validated) -> None: ...

    def saved(self, step: int, path: Path) -> None: ...

    def trouble(self, faults: tuple[Fault, ...]) -> None: ...

    def ended(self, reason: str, model: Path) -> None: ...
