"""Steps whose loss or gradient is NaN or infinite. The run stops and writes the batches of the step, to reproduce it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ..data import Batch
from ..errors import Diagnostic, TrainingError


class NotFinite(Exception):
    """The loss of a step, or its gradient norm, is NaN or infinite; `batches` are the numbers of its batches."""

    def __init__(self, step: int, what: str, batches: range) -> None:
        super().__init__(f"{what} of step {step} is NaN or infinite")
        self.step, self.batches = step, batches


def _tensors(batch: Batch) -> dict[str, Tensor]:
    """The inputs, segments and labels of a batch by name."""
    segments = {f"{name}.segments": ids for name, ids in batch.segments.items()}
    others = {f"{name}.labels": labels for name, labels in batch.other_labels.items()}
    return {**batch.inputs, **segments, "labels": batch.labels, **others}


def report_not_finite(
    error: NotFinite, batches: Sequence[Batch], directory: Path, checkpoint: Path | None, has_best: bool
) -> NoReturn:
    """Write the batches of the step into the directory of the run, and raise TrainingError.

    Args:
        error: The error.
        batches: The batches of the step.
        directory: The directory of the run.
        checkpoint: The checkpoint before the step; None if it could not be written.
        has_best: Whether the run has saved a model, from which a new run could start.
    """
    path = directory / f"not-finite-step-{error.step}.safetensors"
    tensors = {
        f"{number}/{name}": tensor.cpu().contiguous()
        for number, batch in enumerate(batches)
        for name, tensor in _tensors(batch).items()
    }
    try:
        save_file(tensors, path)
        where = f"its batches are in {path}"
    except (OSError, SafetensorError) as reason:
        where = f"its batches could not be written ({reason})"
    if checkpoint is not None:
        where += f", the state before it in {checkpoint}"
    best = f", from the best model so far (--from {directory})" if has_best else ""
    fix = f"start a new run with a lower learning rate, with `clip_norm`, or in float32{best}"
    raise TrainingError(Diagnostic("TFK110", f"{error}; {where}", fix)) from None
