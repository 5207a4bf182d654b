"""`tfkit merge`: an adapter and its base model as one model."""

from __future__ import annotations

from pathlib import Path

import click

from ..view.terminal import shown
from .options import READ, WRITE, common
from .output import print_json, print_text
from .packages import import_torch

EPILOG = """\b
tfkit merge runs/en-de-news -o en-de-news
"""


@click.command("merge", epilog=EPILOG)
@click.argument("model", metavar="DIR", type=READ, help="A run with `lora`, or a model of it.")
@click.option("-o", "--output", metavar="DIR", type=WRITE, required=True, help="Where the merged model is saved.")
@click.option("--base", metavar="DIR", type=READ, help="The base model, if it is no longer where it was.")
@click.option("--force", is_flag=True, help="Replace a model that is saved there already.")
@common
def command(model: str, output: str, base: str | None, force: bool, as_json: bool) -> int:
    """Save an adapter and its base model as one model.

    The weights are W + alpha / rank * B A. The merged model needs neither the base model nor peft.
    """
    import_torch()
    from ..errors import Diagnostic, StoreError
    from ..io import load, model_in, other_files, save
    from ..io.saved_files import read_versions

    place = model_in(Path(model))
    if read_versions(place).base is None:
        message = f"{place} is no adapter: it has all its weights"
        raise StoreError(Diagnostic("TFK082", message, "name a run of a recipe with `lora`"))
    merged = load(place, base=base)
    save(merged, output, overwrite=force, texts=other_files(place))
    if as_json:
        print_json({"merged": str(place), "directory": output})
    else:
        print_text(shown(f"{output}: {place} and its base, {merged.parameter_count():,} parameters"))
    return 0
