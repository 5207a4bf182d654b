"""The progress of a run, and the callbacks that receive its events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..errors import Diagnostic
from ..slots.options import AsTuple

MAX_WHOLE = (1 << 53) - 1
"""The largest integer in the files of a run: every integer up to it is a float64."""
MAX_SCORE = 100.5
"""Scores are percentages or negative losses; a BLEU of 100 may round above it."""
Whole = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
Count = Annotated[int, Field(ge=1, le=MAX_WHOLE)]


class Progress(BaseModel):
    """The progress of a run.

    Attributes:
        step: Steps made.
        epoch: The current epoch, from 1.
        batch: Batches of the current epoch that were used.
        source_tokens: Source tokens of all steps, without padding.
        target_tokens: Target tokens of all steps, without padding.
        best: The best validation score; None before the first one.
        best_step: The step of that score.
        stale: Validations since then.
        seconds: Wall time of all commands of the run, with start-up and validation.
        best_models: Score and step of the saved models, best first.
        validated: The step of the last validation.
        reductions: How often a plateau has reduced the learning rate.
        plateau_best: The best score of the schedule `plateau`, larger is better.
        plateau_stale: Validations since then, or since the last reduction.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    step: Whole = 0
    epoch: Count = 1
    batch: Whole = 0
    source_tokens: Whole = 0
    target_tokens: Whole = 0
    best: float | None = None
    best_step: Count | None = None
    stale: Whole = 0
    seconds: Annotated[float, Field(ge=0, le=MAX_WHOLE)] = 0.0
    best_models: list[Annotated[tuple[float, Count], AsTuple]] = []
    validated: Whole = 0
    reductions: Whole = 0
    plateau_best: float | None = None
    plateau_stale: Whole = 0

    @model_validator(mode="after")
    def _agrees(self) -> Progress:
        latest = max([self.validated, self.best_step or 0, *(step for _, step in self.best_models)])
        if latest > self.step:
            raise ValueError(f"step {latest} was validated, but only {self.step} were made")
        if (self.best is None) != (self.best_step is None):
            raise ValueError("`best` and `best_step` belong together")
        if self.best_step is not None and self.validated < self.best_step:
            raise ValueError(f"step {self.best_step} is the best, but the last validation was that of step {self.validated}")
        steps = [step for _, step in self.best_models]
        if self.best_models != sorted(self.best_models, key=lambda scored: (-scored[0], scored[1])) or len({*steps}) < len(
            steps
        ):
            raise ValueError("`best_models` are not different models, the best first")
        if self.best is not None and any(score > self.best for score, _ in self.best_models):
            raise ValueError("a model of `best_models` is better than the best")
        for score, step in self.best_models:  # without validation the latest model counts as the best
            wanted = float(step) if self.best is None else self.best if step == self.best_step else score
            if score != wanted:
                raise ValueError(f"the model of step {step} has the score {score:g} in `best_models`, and {wanted:g} elsewhere")
        for name, value in (("best", self.best), ("plateau_best", self.plateau_best)):
            if value is not None and value > MAX_SCORE:
                raise ValueError(f"`{name}` is {value:g}, and a score is at most 100")
        return self


@dataclass(frozen=True)
class Step:
    """One step of the optimiser.

    Attributes:
        step: Its number, from 1.
        epoch: Its epoch, from 1.
        loss: The smoothed loss, in nats per target token.
        nll: The negative log-likelihood, in nats per target token.
        rate: The learning rate.
        norm: The norm of the gradient before it was clipped.
        source_tokens: Source tokens, without padding.
        target_tokens: Target tokens, without padding.
        seconds: Its wall time.
    """

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
        """exp(nll), without overflow."""
        return math.exp(min(self.nll, 700.0))


@dataclass(frozen=True)
class ValidationResult:
    """The result of one validation.

    Attributes:
        step: The number of steps before it.
        epoch: The epoch of the last of these, from 1.
        nll: The negative log-likelihood without label smoothing, in nats per target token.
        scores: Scores by name, 0 to 100: BLEU and chrF, accuracy, F1, exact match, alignment error rate.
        signatures: sacrebleu's signatures of the scores.
        best: Whether it was the best so far.
        seconds: Its wall time.
        sample: Source, reference and translation of one row.
        corpora: Of several corpora, `nll` and the scores of each, whose mean the others are.
        rate: The learning rate of the next step, if a plateau has just reduced it.
    """

    step: int
    epoch: int
    nll: float
    scores: dict[str, float]
    signatures: dict[str, str]
    best: bool
    seconds: float
    sample: tuple[str, str, str] | None = None
    corpora: dict[str, dict[str, float]] = field(default_factory=dict)
    rate: float | None = None

    @property
    def written(self) -> dict[str, Any]:
        """The result as JSON data, without `corpora` if there is one, and without `rate` if it is not reduced."""
        return {name: value for name, value in asdict(self).items() if value or name not in ("corpora", "rate")}

    @property
    def perplexity(self) -> float:
        """exp(nll), without overflow."""
        return math.exp(min(self.nll, 700.0))


class Callback(Protocol):
    """Receives the events of a training run, in the first process only.

    If a callback raises an exception, the run writes a checkpoint after the current step, stops, and raises the exception.
    """

    def on_train_start(self, trainer: Any, changes: list[str]) -> None:
        """Called before the first step with the `Trainer` and the changes to the spec that the data needed, in the form of
        `--set`."""

    def on_step_end(self, step: Step) -> None:
        """Called after each step; of a recorded one, while the device computes the gradient of the next, before its update."""

    def on_validation_end(self, result: ValidationResult) -> None:
        """Called after each validation."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Called after a checkpoint is written."""

    def on_warning(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """Called after a failure, such as a write to a full disk, that does not stop the training."""

    def on_train_end(self, reason: str, model: Path) -> None:
        """Called after the last step with why training ended, and the directory of the best model."""


class CallbackList:
    """Calls every callback for an event. `failure` is the first exception of a callback."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = tuple(callbacks)
        self.failure: Exception | None = None

    def notify(self, event: Callable[[Callback], None]) -> None:
        """Call each callback, even if an earlier one fails."""
        for callback in self.callbacks:
            try:
                event(callback)
            except Exception as error:
                self.failure = self.failure or error
