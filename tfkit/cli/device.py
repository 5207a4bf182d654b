"""The devices of this machine, and the errors if a model needs more than they have."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import BuildError, Diagnostic
from ..graph import Target
from ..nn.device_moves import device_here as device_here
from ..view.terminal import shown
from .backend_args import catalogue_with, check_auto
from .usage import usage_error


def chosen_device(device: str, cpu: object = False) -> str:
    """The device of a command. `auto` is a CPU if the command has what only a CPU can do (`cpu`), and where torch can use no
    CUDA device; any other choice is reported on standard error."""
    if device != "auto":
        return device
    if cpu or not torch.cuda.is_available():
        return "cpu"
    if os.environ.get("RANK", "0") == "0":
        print(shown(f"device: cuda ({torch.cuda.get_device_name()}); --device cpu uses the CPU"), file=sys.stderr)
    return "cuda"


def placed(device: str, backend: list[str] | None, auto_table: str | None) -> dict[str, Any]:
    """The options of `tfkit.cli.options.placement` as the keywords of functions that train a model. Raises BuildError without
    such a device, UsageError or InputError for the table."""
    device = chosen_device(device)
    device_here(device)
    check_auto(backend, auto_table)
    return {"device": device, "backend": backend, "catalogue": catalogue_with(auto_table)}


def loaded(device: str, backend: list[str] | None, auto_table: str | None, allow_nan: bool) -> dict[str, Any]:
    """The options of `tfkit.cli.options.loading` as the keywords of functions that load a model. Errors as in `placed`."""
    return {**placed(device, backend, auto_table), "allow_nan": allow_nan}


def use_cpu_table(cpu_table: str | None, device: str) -> None:
    """Use the table of `--cpu-table`, or the built-in rule for None. Raises UsageError on another device than a CPU, and
    InputError."""
    from ..cpu.product_table_file import use_cpu_table

    if cpu_table is not None and torch.device(device).type != "cpu":
        raise usage_error(f"--cpu-table is for a CPU, not for {device}", "leave it out")
    use_cpu_table(cpu_table)


def target_of(device: str, dtype: str) -> Target:
    """Training on a device of this machine."""
    place = torch.device(device)
    return Target(place.type, torch.cuda.get_device_capability(place) if place.type == "cuda" else None, dtype)


@contextmanager
def allocating(device: str) -> Iterator[None]:
    """Raises BuildError if the memory of the device runs out."""
    try:
        yield
    except torch.OutOfMemoryError as reason:
        message = f"{device} does not have enough free memory: {str(reason).splitlines()[0]}"
        raise BuildError(
            Diagnostic("TFK045", message, "make the model smaller, choose a smaller dtype, or another device")
        ) from None


def check_output(not_finite: Sequence[str]) -> None:
    """Raises BuildError if outputs of the dry run contain NaN or infinity."""
    if not_finite:
        message = f"the first forward pass gave NaN or infinity in {', '.join(not_finite)}"
        raise BuildError(Diagnostic("TFK091", message, "try --dtype float32, another backend, or another initialiser"))
