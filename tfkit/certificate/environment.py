"""Where a certificate was made: versions, machine, instruction set, device. No torch."""

from __future__ import annotations

import platform
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from ..cpu.instruction_set import instruction_set

NOTED = ("python",)
"""What is noted and not compared: the suite exercises no part of Python itself."""
_GPUS = "/proc/driver/nvidia/gpus"
_REQUIREMENT = re.compile(r"[\w.-]+")


def environment(device: str, distribution: str, gpu: str = "") -> dict[str, str]:
    """What the verdict of the suite depends on beside the part.

    Args:
        device: "cpu", "cuda" or "cuda:1".
        distribution: that registers the part; empty for a plain function.
        gpu: the name of the device, if torch was asked for it.

    Returns:
        Versions and names by what they are of.
    """
    found = {"python": platform.python_version(), "machine": platform.machine()}
    packages = {"tfkit", "torch"}
    if distribution not in ("", "tfkit"):
        packages |= _required_by(distribution)
    for package in sorted(packages):
        with suppress(PackageNotFoundError):
            found[package] = version(package).partition("+")[0]
    if device == "cpu":
        found["instruction set"] = instruction_set()
    else:
        found["gpu"] = gpu or gpu_here()
    return found


def gpu_here() -> str:
    """The name of the first NVIDIA GPU as its driver gives it; empty without one."""
    with suppress(OSError):
        for folder in sorted(Path(_GPUS).iterdir()):
            text = (folder / "information").read_text(encoding="utf-8", errors="replace")
            if found := re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE):
                return found[1]
    return ""


def _required_by(distribution: str) -> set[str]:
    """The packages that a distribution requires, without those of its extras."""
    with suppress(PackageNotFoundError):
        names = [_REQUIREMENT.match(each) for each in requires(distribution) or () if "extra ==" not in each]
        return {name[0].lower() for name in names if name}
    return set()
