"""The rules that end a training run."""

from __future__ import annotations

from ..recipe import Recipe
from .callbacks import Progress


def why_stop(recipe: Recipe, progress: Progress, validation_seconds: float) -> str | None:
    """Check the limits of a recipe.

    Args:
        recipe: Its `stopping` holds the limits.
        progress: The progress of the run.
        validation_seconds: The expected time of the validation at the end, which `max_minutes` includes.

    Returns:
        The reason to stop, or None.
    """
    limits = recipe.stopping
    if limits.max_steps is not None and progress.step >= limits.max_steps:
        return f"{limits.max_steps:,} steps are made"
    if limits.max_epochs is not None and progress.epoch > limits.max_epochs:
        return f"{limits.max_epochs:,} epochs are complete"
    if limits.patience is not None and progress.stale >= limits.patience:
        return f"{progress.stale} validations without a better score"
    if limits.max_minutes is not None and progress.step and progress.seconds + validation_seconds >= 60 * limits.max_minutes:
        reserved = f", less {validation_seconds:.0f} s for the last validation" if validation_seconds >= 1 else ""
        return f"{limits.max_minutes:g} minutes are over{reserved}"
    return None
