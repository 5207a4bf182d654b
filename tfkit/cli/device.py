"""What this machine has to offer to a model that is built on it, and the faults where that is not enough."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import BuildError, Diagnostic
from ..graph import Target
from .backend_args import catalogue_of, check_auto


def check_device(device: str) -> None:
    """Raises BuildError where a device is not there."""
    place = torch.device(device)
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        message = f"there is no device {device} here, CUDA devices: {torch.cuda.device_count()}"
        raise BuildError(
            Diagnostic("TFK046", message, "use `--device cpu`, or `tfkit plan` to plan for a device that is not there")
        )


def placed(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_placing` declares, as everything that loads or trains a model takes it. Raises BuildError where the device is
    not there, UsageError and InputError for a table of `auto` that is none or is not gone by."""
    check_device(options.device)
    check_auto(options)
    return {"device": options.device, "backend": options.backend, "catalogue": catalogue_of(options)}


def target_of(device: str, dtype: str) -> Target:
    """Training on a device of this machine."""
    place = torch.device(device)
    return Target(place.type, torch.cuda.get_device_capability(place) if place.type == "cuda" else None, dtype)


@contextmanager
def allocating(device: str) -> Iterator[None]:
    """Raises BuildError where the memory of the device runs out."""
    try:
        yield
    except torch.OutOfMemoryError as reason:
        message = f"{device} has not enough free memory: {str(reason).splitlines()[0]}"
        raise BuildError(
            Diagnostic("TFK045", message, "make the model smaller, choose a smaller dtype, or another device")
        ) from None


def check_output(not_finite: Sequence[str]) -> None:
    """Raises BuildError where the trial gave numbers that are none."""
    if not_finite:
        message = f"the first forward gave infinite numbers or NaN in {', '.join(not_finite)}"
        raise BuildError(Diagnostic("TFK091", message, "try --dtype float32, another backend, or another initialiser"))
