"""`tfkit average`: one model from several."""

from __future__ import annotations

from pathlib import Path

import click

from ..view.terminal import shown
from .options import READ, WRITE, common, whole
from .output import print_json, print_text
from .packages import TEXT, import_torch, need_packages
from .usage import usage_error

EPILOG = """\b
tfkit average runs/en-de --last 5 -o averaged
tfkit average runs/a/models/step-800 runs/a/models/step-900 -o averaged
"""


@click.command("average", epilog=EPILOG)
@click.argument("models", nargs=-1, required=True, metavar="DIR...", type=READ, help="One run, or two or more models.")
@click.option("--last", type=whole, metavar="N", help="Of a run: how many checkpoints (default: all that it kept).")
@click.option("-o", "--output", metavar="DIR", type=WRITE, required=True, help="Where the averaged model is saved.")
@click.option("--force", is_flag=True, help="Replace a model that is saved there already.")
@common
def command(models: tuple[str, ...], last: int | None, output: str, force: bool, as_json: bool) -> int:
    """Average the weights of several models.

    From a run, the weights of its last checkpoints are averaged; `keeping.last` in the recipe is the number that a run keeps.
    From models, their weights are averaged. All must have the same spec and the same tokenisers.
    """
    if last is not None and len(models) > 1:
        raise usage_error("--last counts the checkpoints of one run", "leave it out, or name one run")
    need_packages("train", *TEXT)
    import_torch()
    from ..train import average_checkpoints, average_models

    places, directory = [Path(name) for name in models], Path(output)
    if len(places) == 1:
        averaged = average_checkpoints(places[0], last, directory, overwrite=force)
    else:
        averaged = average_models(places, directory, overwrite=force)
    if as_json:
        print_json({"averaged": [str(path) for path in averaged], "directory": str(directory)})
    else:
        print_text(shown(f"{directory}: the mean of {len(averaged)}: {', '.join(path.name for path in averaged)}"))
    return 0
