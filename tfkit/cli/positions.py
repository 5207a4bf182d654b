"""`tfkit positions`: the position schemes of a model as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .drawing_args import drawing_options, form_of, put
from .options import READ, common, set_option, whole
from .packages import need_packages
from .usage import usage_error

if TYPE_CHECKING:
    from ..nn.position_values import PositionValues

FORMS = ("html", "png", "svg")
MOST = 1024
"""The largest number of positions that are drawn."""
EPILOG = """\b
Embeddings: the table (position x dimension), curves, similarity of positions.
Rotary: the angle of each feature, its cosine, similarity. Scores: the bias of
each head by distance. A spec shows learned tables as they are initialised.

\b
tfkit positions specs/transformer-base.yaml -o positions.html
tfkit positions runs/first -o learned.html --before spec.yaml

\b
--json prints an object with `file` and `schemes` (`name`, `kind`, `place`,
`learned`, `shape` of the table).
"""


def _count(text: str | int) -> int:
    number = whole(text, 2)
    if number > MOST:
        raise ValueError(f"at most {MOST} positions are drawn, `{text}` is written")
    return number


@click.command("positions", epilog=EPILOG)
@click.argument("spec", type=READ, metavar="SPEC|MODEL", help="A spec, YAML or JSON, or the directory of a saved model or run.")
@set_option
@click.option("--positions", "count", metavar="N", type=_count, default=50, help="How many positions; an image has its own.")
@click.option("--before", type=READ, metavar="SPEC|MODEL", help="Draw the same schemes of this spec or model above.")
@drawing_options(*FORMS, flags=False)
@common
def command(
    spec: str, overrides: tuple[str, ...], count: int, before: str | None, output: str, force: bool, as_json: bool
) -> int:
    """Draw the position schemes of a spec or a model."""
    need_packages("pictures", "matplotlib")
    form = form_of(None, output, force, FORMS)
    if overrides and Path(spec).is_dir():
        raise usage_error(f"--set changes a spec, and {spec} is a saved model", "name its spec.yaml")
    from ..look import positions

    figure = positions(spec, count=count, before=before, overrides=overrides)
    if not figure.groups:
        raise usage_error(f"{spec} has no position scheme", "write `position:` in the spec")
    if before is not None and all(len(group) == 1 for group in figure.groups):
        raise usage_error(
            f"{before} has none of the position schemes of {spec}", "name a spec or a model of the same structure"
        )
    names = ", ".join(scheme.name for scheme in figure.schemes)
    described = {"schemes": [_described(scheme) for scheme in figure.schemes]} if as_json else None
    put(figure.drawn(str(form)), output, f"positions of {names}", described)
    return 0


def _described(values: PositionValues) -> dict[str, Any]:
    return {
        "name": values.name,
        "kind": values.kind,
        "place": values.place,
        "learned": values.learned,
        "shape": list(values.table.shape),
    }
