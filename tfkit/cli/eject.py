"""`tfkit eject`: a spec or a model as one readable file of PyTorch."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..errors import Diagnostic, StoreError
from ..view.terminal import shown
from .options import READ, WRITE, common, large_option, set_option
from .output import check_place, print_json, print_text, write_whole

EPILOG = """\b
The file imports torch and nothing of tfkit. Its parameters have the names of
the saved model, so that model.safetensors loads strictly:
  python model.py model.safetensors --source 5 6 7
--json prints an object with `name`, `file` and `lines`, or with `source`
instead of `file` where nothing is written.
"""


@click.command("eject", epilog=EPILOG)
@click.argument("spec", type=READ, metavar="SPEC|MODEL", help="A spec, YAML or JSON, or the directory of a saved model or run.")
@set_option
@click.option("-o", "--output", metavar="FILE", type=WRITE, help="Write to this file; standard output without it, and for `-`.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@large_option
@common
def command(spec: str, overrides: tuple[str, ...], output: str | None, force: bool, large: bool, as_json: bool) -> int:
    """Write a model as one readable file of PyTorch."""
    from ..catalogue import load_catalogue
    from ..graph import check_sublayers, graph_of
    from ..interop.eject import eject
    from ..spec import load_spec

    output = None if output == "-" else output
    if output is not None:
        check_place(output)
        if os.path.lexists(output) and not force:
            fix = "choose another file, or replace it with --force"
            raise StoreError(Diagnostic("TFK080", f"{output} exists already", fix))
    model_spec = load_spec(_spec_of(spec), load_catalogue(), overrides)
    if not large:
        check_sublayers(model_spec, graph_of(model_spec))
    text = eject(model_spec)
    if output is not None:
        write_whole(output, text)
    lines = text.count("\n")
    if as_json:
        print_json({"name": model_spec.name, "lines": lines, **({"source": text} if output is None else {"file": output})})
    elif output is None:
        print_text(text)
    else:
        print_text(shown(f"{output}: {model_spec.name}, {lines} lines"))
    return 0


def _spec_of(path: str) -> str:
    """The spec itself, or that of a saved model."""
    if not Path(path).is_dir():
        return path
    from ..io.layout import SPEC, model_in

    return str(model_in(Path(path)) / SPEC)
