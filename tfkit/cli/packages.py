"""The packages of commands: optional ones, and torch."""

from __future__ import annotations

import gc
import sys
from importlib.util import find_spec

from ..distribution import install_line
from ..errors import BuildError, Diagnostic

TEXT = ("tokenizers", "pyarrow")


def need_packages(extra: str, *names: str) -> None:
    """Raises BuildError if one of these packages is not installed; `extra` installs them all."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        several = "packages" if len(missing) > 1 else "package"
        message = f"this needs the {several} {', '.join(missing)}, not installed here"
        raise BuildError(Diagnostic("TFK097", message, install_line(extra)))


def import_torch() -> None:
    """Import torch without the collector of garbage: a million objects live to the end of the process, and the collector looks
    at them neither now nor at the end. It would take a quarter of the time of a short command."""
    if "torch" in sys.modules:
        return
    collects = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()
        if collects:
            gc.enable()
