"""Weights that hold NaN or infinity are named when they are read: every number computed with them would be lost silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..errors import Diagnostic, StoreError
from ..files import not_finite

MAX_NAMED = 3
"""Messages name at most this many tensors."""
ALLOW = "use an earlier checkpoint; --allow-nan, where a command has it, loads such a model (in Python allow_nan=True)"


def check_finite(path: Path, tensors: Mapping[str, Tensor], fix: str = ALLOW) -> None:
    """Check that all numbers are finite.

    Args:
        path: The file that the tensors are from.
        tensors: Tensors by name.
        fix: What the user can do.

    Raises:
        StoreError: Tensors hold NaN or infinity; the first ones are named, with their counts.
    """
    bad = list(_not_finite(tensors))
    diagnostics = [
        not_finite(path, name, _count(tensors[name].isnan()), _count(tensors[name].isinf()), n) for name, n in bad[:MAX_NAMED]
    ]
    if len(bad) > MAX_NAMED:
        diagnostics.append(
            Diagnostic("TFK084", f"{path}: {len(bad) - MAX_NAMED:,} more of {len(tensors):,} tensors hold NaN or infinity")
        )
    if diagnostics:
        last = diagnostics[-1]
        raise StoreError([*diagnostics[:-1], Diagnostic(last.code, last.message, fix)])


def _not_finite(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, int]]:
    """Tensors that hold NaN or infinity, with their number of elements."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            yield name, tensor.numel()


def all_finite(tensor: Tensor) -> bool:
    """Whether no number is NaN or infinite, in one pass and without a copy: `isfinite` takes 30 times as long."""
    # Both ends are NaN if any number is, and one of them is infinite if any number is.
    return not tensor.numel() or bool(torch.stack(tensor.detach().aminmax()).isfinite().all())


def _count(mask: Tensor) -> int:
    return int(mask.sum())
