"""`tfkit diff`: in what two models differ, without building them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .drawing_args import drawing_options, form_of, put
from .options import READ, common, lengths_by_input, whole
from .output import print_json, print_rich
from .usage import usage_error

if TYPE_CHECKING:
    from ..catalogue import Catalogue
    from ..view.diff_data import Side

FORMS = ("html", "svg", "png")
EPILOG = """\b
tfkit diff base.yaml big.yaml
tfkit diff base.yaml base.yaml --set defaults.placement=pre
tfkit diff spec.yaml runs/first          the best model of a run
tfkit diff a.yaml b.yaml -o diff.html    both drawings, differences marked;
                                         or .svg, .png

\b
Fields are those of the resolved specs; name, reference, description and
expect are not compared. Of saved models, dtype and values of the weights
are compared too.
--json prints an object with `equal`, `a`, `b`, `fields` (`field`, `a`, `b`,
`where`), `tensors` (`name`, `a`, `b`), `saved`, `counts` and `nodes`.
Exit code 0 if the models are equal, 1 if they differ, 2 for a wrong input
or an output that cannot be written.
"""


@click.command("diff", epilog=EPILOG)
@click.argument("first", metavar="A", type=READ, help="A spec, or the directory of a saved model or a run.")
@click.argument("second", metavar="B", type=READ, help="Another one.")
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True,
    help="Change one value of B, a spec, for instance encoder.num_layers=12. May be repeated.",
)  # fmt: skip
@click.option("--batch", metavar="N", type=whole, default=1, help="Rows of the batch for the costs.")
@click.option(
    "--lengths", metavar="INPUT=N,...", type=lengths_by_input,
    help="Positions of each input of both, for instance source=32,target=32 (default: 32 each).",
)  # fmt: skip
@drawing_options(*FORMS)
@common
def command(
    first: str, second: str, overrides: tuple[str, ...], batch: int, lengths: dict[str, int] | None,
    form: str | None, output: str | None, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Show in what two models differ: fields, tensors, costs."""
    from ..catalogue import load_catalogue
    from ..view.diff_data import diff_data

    if form and as_json and not output:
        raise usage_error(f"--{form} and --json exclude each other", "choose one, or write the drawing with -o FILE")
    form = form_of(form, output, force, FORMS)
    catalogue = load_catalogue()
    if overrides and Path(second).is_dir():
        raise usage_error(f"--set changes a spec, and {second} is a saved model", "name its spec.yaml")
    both = all(Path(file).is_dir() for file in (first, second))
    a, b = _side(first, (), catalogue, batch, both), _side(second, overrides, catalogue, batch, both)
    _check_inputs([a, b], lengths or {})
    a, b = (_with_batch(side, batch, lengths) for side in (a, b))
    data = diff_data(a, b)
    if form:
        put(_drawn(form, a, b, data), output, f"{a.spec.name} and {b.spec.name} side by side", data if as_json else None)
    elif as_json:
        print_json(data)
    else:
        from ..view.diff_text import diff_text

        print_rich(*diff_text(data))
    return 0 if data["equal"] else 1


def _drawn(form: str, a: Side, b: Side, data: dict[str, Any]) -> str | bytes:
    from ..view.drawing.page import diff_drawings, diff_page

    if form == "html":
        return diff_page(a, b, data)
    drawings = diff_drawings(a, b, data)
    if form == "svg":
        from ..view.drawing.svg import side_by_side

        return side_by_side(drawings)
    from ..view.drawing.figure import png

    return png(drawings)


def _side(file: str, overrides: tuple[str, ...], catalogue: Catalogue, batch: int, checked: bool) -> Side:
    """A spec, or a saved model without its weights, whose digest may be checked. Its batch has no lengths yet."""
    from ..graph import Batch
    from ..view.diff_data import Side
    from .model_or_spec import named

    model = named(file, catalogue, overrides, checked=checked)
    return Side(file, model.spec, model.graph, Batch(batch, {}), overrides, model.dtype, model.item_size, model.digest)


def _check_inputs(sides: list[Side], lengths: Mapping[str, int]) -> None:
    """Raises UsageError for a length of an input that neither model has."""
    from .batch_args import batch_of

    for name in lengths:
        if all(name not in side.graph.nodes for side in sides):
            batch_of(sides[0].graph, 1, {name: lengths[name]})


def _with_batch(side: Side, size: int, lengths: Mapping[str, int] | None) -> Side:
    from dataclasses import replace

    from .batch_args import batch_of

    side_lengths = None if lengths is None else {name: length for name, length in lengths.items() if name in side.graph.nodes}
    return replace(side, batch=batch_of(side.graph, size, side_lengths))
