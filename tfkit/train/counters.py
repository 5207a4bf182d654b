"""Counters of a checkpoint that no run can have: a stopping rule, a schedule or a curve would follow them silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from .checkpoint_state import Scaler, State

HALVINGS = 300
"""float16 skips a step only where it halves its scale, a float32 number; every step grows the scale again at most once."""
MOST_USES = 2
"""A token is read, and perhaps predicted."""


def impossible(state: State, optimiser: Mapping[str, Tensor], rows: int, tokens: int, accumulate: int) -> Iterator[str]:
    """The contradictions between the counters of a checkpoint.

    Args:
        state: Holds them.
        optimiser: The tensors of the optimiser, with the steps of each parameter as `NAME/step`.
        rows: The rows of the training data.
        tokens: Their tokens, and their labels.
        accumulate: The batches of a step.
    """
    progress = state.progress
    step, epoch = progress.step, progress.epoch
    tried = step + (step + HALVINGS if isinstance(state.scaler, Scaler) else 0)
    of_epoch = -(-rows // accumulate)
    if epoch - 1 + (progress.batch > 0) > tried:
        yield f"`progress.epoch` is {epoch:,} after {step:,} steps, and an epoch has at least one"
    if step > epoch * of_epoch:
        yield f"`progress.step` is {step:,} in epoch {epoch:,}, and an epoch of {rows:,} rows has at most {of_epoch:,}"
    for name, found, most in (
        ("progress.source_tokens", progress.source_tokens, MOST_USES * tokens * epoch),
        ("progress.target_tokens", progress.target_tokens, MOST_USES * tokens * epoch),
        ("progress.stale", progress.stale, step),
        ("average_steps", state.average_steps or 0, step),
    ):
        if found > most:
            yield f"`{name}` is {found:,} after {step:,} steps, and at most {most:,} is possible"
    counted = {name: float(value) for name, value in optimiser.items() if name.endswith("/step")}
    for name, value in counted.items():
        if not 0 <= value <= step:
            yield f"`{name}` of the optimiser is {value:g} after {step:,} steps"
            break
