"""The options of commands that draw: the form and the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from ..errors import Diagnostic, StoreError
from ..view.matplotlib_import import import_matplotlib
from ..view.terminal import shown
from .options import WRITE
from .output import check_place, print_json, print_text, write_whole
from .packages import need_packages
from .usage import usage_error

Declared = TypeVar("Declared", bound=Callable[..., Any])
ABOUT = {"html": "Draw a page of HTML.", "svg": "Draw an SVG.", "png": "Draw a PNG."}


def drawing_options(*forms: str, flags: bool = True) -> Callable[[Declared], Declared]:
    """Add the options of the forms (the argument `form`), `-o` (`output`) and `--force`. Without `flags`, the ending of the
    file is the only way to choose."""

    def add(command: Declared) -> Declared:
        command = click.option("--force", is_flag=True, help="Replace a file that exists.")(command)
        words = "The drawing" if flags else f"The drawing; the ending is {_either(forms)}"
        command = click.option("-o", "--output", metavar="FILE", type=WRITE, required=not flags, help=f"{words}.")(command)
        for form in reversed(forms) if flags else ():
            command = click.option(f"--{form}", "form", flag_value=form, help=ABOUT[form])(command)
        return command

    return add


def form_of(form: str | None, output: str | None, force: bool, forms: Sequence[str]) -> str | None:
    """The form to draw, None for no drawing. Checks, before any work, that the file can be written. Raises UsageError,
    StoreError or BuildError."""
    if output is not None and form is None:
        form = next((ending for ending in forms if output.endswith(f".{ending}")), None)
        if form is None:
            raise usage_error(f"`{output}` ends in none of {_either(forms)}", "choose an ending that names the form")
    if form == "png":
        if output is None:
            raise usage_error("a PNG needs a file", "add -o FILE.png")
        need_packages("pictures", "matplotlib")
        import_matplotlib()
    if output is not None:
        check_place(output)
        if os.path.lexists(output) and not force:
            raise StoreError(
                Diagnostic("TFK080", f"{output} exists already", "choose another file, or replace it with --force")
            )
    return form


def put(drawn: str | bytes, output: str | None, words: str, data: dict[str, Any] | None) -> None:
    """Write a drawing to a file, and print `words` about it, or `data` as JSON; without a file, print the drawing."""
    if output is None:
        print_text(drawn if isinstance(drawn, str) else drawn.decode())
        return
    write_whole(output, drawn)
    if data is not None:
        print_json({"file": output, **data})
    else:
        print_text(shown(f"{output}: {words}"))


def _either(forms: Sequence[str]) -> str:
    return f"{', '.join(f'.{form}' for form in forms[:-1])} or .{forms[-1]}" if len(forms) > 1 else f".{forms[0]}"
