"""What a run will reach within `stopping.max_minutes`, estimated from its first steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Diagnostic
from .callbacks import Step, ValidationResult
from .trainer import steps_per_epoch

if TYPE_CHECKING:
    from .trainer import Trainer

SLOW, MEASURED = 5, 20
"""Steps of a command: those at its beginning that are slower than the rest, and those after which it is estimated."""
FEWEST = 100
"""With fewer steps than this, hardly any model learns anything."""


@dataclass(frozen=True)
class Reach:
    """Where a run will be at its time limit.

    Attributes:
        steps: The steps of the whole run.
        epochs: The passes over the data.
        minutes: The time limit.
        seconds_per_step: The measured wall time of a step, without validation.
        warmup_steps: The steps until the highest learning rate.
    """

    steps: int
    epochs: float
    minutes: float
    seconds_per_step: float
    warmup_steps: int

    @property
    def text(self) -> str:
        pace = f"{self.seconds_per_step:.2f} s per step"
        return f"at {pace} about {self.steps:,} steps ({self.epochs:.2g} epochs) fit in {self.minutes:g} minutes"

    @property
    def warning(self) -> Diagnostic | None:
        """Why the run is not worth its time, if so."""
        if self.steps >= max(self.warmup_steps, FEWEST):
            return None
        few = f"{self.steps:,} steps in {self.minutes:g} minutes"
        rising = f"the learning rate rises until step {self.warmup_steps:,}"
        why = rising if self.steps < self.warmup_steps else f"fewer than {FEWEST} hardly teach a model anything"
        fix = "choose a smaller model, smaller batches, or a longer `stopping.max_minutes`"
        return Diagnostic("TFK129", f"the time limit ends the run early: {few}; {why}", fix)


def reach_of(trainer: Trainer, seconds_per_step: float) -> Reach | None:
    """Estimate where the run will be at its time limit, from the wall time of a step without validation. None without a time
    limit, or if another limit ends the run before."""
    stopping, progress, batching = trainer.recipe.stopping, trainer.progress, trainer.recipe.batching
    if stopping.max_minutes is None:
        return None
    left = 60 * stopping.max_minutes - progress.seconds - trainer.clock.validation_seconds
    steps = progress.step + int(max(left, 0.0) / max(seconds_per_step, 1e-9))
    used = progress.batch / batching.accumulate
    epochs = progress.epoch - 1 + (used + steps - progress.step) / steps_per_epoch(trainer)
    if stopping.max_steps is not None and steps >= stopping.max_steps:
        return None
    if stopping.max_epochs is not None and epochs >= stopping.max_epochs:
        return None
    warmup = trainer.recipe.schedule.options.warmup_steps
    return Reach(steps, epochs, stopping.max_minutes, seconds_per_step, warmup)


class BudgetCheck:
    """A callback that says once, after `MEASURED` steps, what the run will reach."""

    def __init__(self, say: Callable[[Reach], None]) -> None:
        self.say = say
        self.trainer: Trainer | None = None
        self.seconds: list[float] = []

    def on_train_start(self, trainer: Trainer, changes: list[str]) -> None:
        self.trainer = trainer

    def on_step_end(self, step: Step) -> None:
        if len(self.seconds) == MEASURED:
            return
        self.seconds.append(step.seconds)
        if len(self.seconds) == MEASURED and self.trainer is not None:
            reach = reach_of(self.trainer, sum(self.seconds[SLOW:]) / (MEASURED - SLOW))
            if reach is not None:
                self.say(reach)

    def on_validation_end(self, result: ValidationResult) -> None:
        pass

    def on_checkpoint(self, step: int, path: Path) -> None:
        pass

    def on_warning(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        pass

    def on_train_end(self, reason: str, model: Path) -> None:
        pass
