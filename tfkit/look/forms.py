"""What a figure can be written as: a page or a picture."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ..distribution import install_line
from ..errors import BuildError, Diagnostic, InputError
from ..view.matplotlib_import import import_matplotlib

PICTURES = (".png", ".svg")
SUFFIXES = (".html", *PICTURES, "")


def check_matplotlib() -> None:
    """Raises BuildError if matplotlib is not installed, and imports it otherwise."""
    if find_spec("matplotlib") is None:
        message = "pictures need the package matplotlib, not installed here"
        raise BuildError(Diagnostic("TFK097", message, f"{install_line('pictures')}, or write a page: -o page.html"))
    import_matplotlib()


def check_suffix(path: str | Path) -> None:
    """Check that a file name says how to draw.

    Raises:
        InputError: it has another ending than `SUFFIXES`.
    """
    ending = "/" if str(path).endswith("/") else Path(path).suffix  # a `Path` drops the slash
    if ending not in SUFFIXES:
        message = f"{path} ends in `{ending}`"
        raise InputError(Diagnostic("TFK081", message, "write a name that ends in .html, .png or .svg"))
