"""Resolves what a run needs: the backend of a name, the device, the versions."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from typing import Any

import torch

import tfkit
from tfkit import BuildError, Catalogue, Diagnostic, InputError, load_catalogue
from tfkit.inspection import flash_implementation
from tfkit.plugin import AttentionBackend

from .attention.backend_under_test import BackendUnderTest, backend_under_test
from .attention.case import DTYPES


def resolve(
    backend: str | AttentionBackend | BackendUnderTest, options: Any, device: str, catalogue: Catalogue | None
) -> tuple[BackendUnderTest, str]:
    """The backend under test and its distribution. A `BackendUnderTest` has its own device. Raises InputError for an unknown
    or device."""
    if isinstance(backend, BackendUnderTest):
        return backend, ""
    if re.fullmatch(r"[a-z]+(:[0-9]{1,3})?", device) is None:
        raise InputError(Diagnostic("TFK094", f"there is no device `{device}`", "devices: cpu, cuda, cuda:1"))
    if isinstance(backend, AttentionBackend):
        return backend_under_test(backend, options, device), ""
    catalogue = catalogue or load_catalogue()
    entry = catalogue.find("backend", backend)
    if not isinstance(entry, AttentionBackend):
        fix = catalogue.why_missing("backend", backend)
        raise InputError(Diagnostic("TFK094", f"there is no attention backend `{backend}`", fix))
    if isinstance(options, dict):
        options = entry.options.model_validate(options)
    return backend_under_test(entry, options, device), catalogue.registered["backend"][backend].distribution


def known_dtypes(dtypes: Iterable[str]) -> frozenset[str]:
    """The dtypes that are asked for. Raises InputError for one that does not exist."""
    asked = frozenset(dtypes)
    for dtype in sorted(asked - set(DTYPES)):
        raise InputError(Diagnostic("TFK094", f"there is no dtype `{dtype}`", f"dtypes: {', '.join(DTYPES)}"))
    return asked


def missing_device(device: str) -> str:
    """Why nothing can run on a device; empty where it is there."""
    place = torch.device(device)
    missing = place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count()
    return f"there is no device {device} here" if missing else ""


def require_device(device: str) -> None:
    """Raises BuildError where a device is missing."""
    if reason := missing_device(device):
        raise BuildError(Diagnostic("TFK046", reason, "use `--device cpu`"))


def why_not_run(subject: BackendUnderTest) -> str:
    """Why nothing can run on the device of a backend under test; empty where calls can be made."""
    if reason := missing_device(subject.device):
        return f"not run: {reason}"
    kind = subject.device.partition(":")[0]
    if kind not in {device.kind for device in subject.capabilities.devices}:
        return f"not run: {kind} is not among its declared devices"
    return ""


def versions(device: str) -> dict[str, str]:
    """tfkit, torch, Python, and the machine."""
    environment = {"tfkit": tfkit.__version__, "torch": torch.__version__, "python": platform.python_version()}
    if device.startswith("cuda") and torch.cuda.is_available():
        environment["device"] = torch.cuda.get_device_name(device)
    if implementation := flash_implementation():
        environment["flash attention"] = implementation
    return environment | {"machine": platform.machine()}
