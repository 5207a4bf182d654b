"""Optional packages of commands."""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import BuildError, Diagnostic

TEXT = ("tokenizers", "pyarrow")


def need_packages(extra: str, *names: str) -> None:
    """Raises BuildError if one of these packages is not installed; `extra` installs them all."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        several = "packages" if len(missing) > 1 else "package"
        message = f"this needs the {several} {', '.join(missing)}, not installed here"
        raise BuildError(Diagnostic("TFK097", message, f"pip install 'tfkit[{extra}]'"))
