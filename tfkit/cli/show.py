"""`tfkit show`: the model that a spec describes, without building it."""

from __future__ import annotations

from typing import Any

import click

from .drawing_args import drawing_options, form_of, put
from .options import common, lengths_by_input, set_option, spec_argument, whole
from .output import print_json, print_rich, print_text
from .usage import usage_error

FORMS = ("html", "svg", "png")
EPILOG = """\b
--json prints an object with `name`, `parameters`, `nodes` (each with `name`,
`kind`, `shape`, `parameters`, `layers`, `flops`, ...), `sites`, `batch`,
`flops`, `activation_elements`, ...; with --resolved, the resolved spec.
FLOPs count matrix products, a multiply-add as two.

\b
tfkit show spec.yaml -o model.html       a page: click a box to fold it
tfkit show spec.yaml -o model.svg        or .png
"""


@click.command("show", epilog=EPILOG)
@spec_argument
@set_option
@click.option("--resolved", is_flag=True, help="Print the spec with everything filled in; it loads back equal.")
@click.option("--mermaid", is_flag=True, help="Print a Mermaid flowchart.")
@click.option("--batch", metavar="N", type=whole, default=1, help="Rows of the batch for the costs.")
@click.option(
    "--lengths", metavar="INPUT=N,...", type=lengths_by_input,
    help="Positions of each input, for instance source=32,target=32 (default: 32 each).",
)  # fmt: skip
@drawing_options(*FORMS)
@common
def command(
    spec: str, overrides: tuple[str, ...], resolved: bool, mermaid: bool, batch: int, lengths: dict[str, int] | None,
    form: str | None, output: str | None, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Show what a spec describes: nodes, shapes, parameters, costs."""
    from ..catalogue import load_catalogue
    from ..graph import graph_of
    from ..spec import load_spec, to_json, to_yaml
    from ..view.model_data import model_data
    from .batch_args import batch_of

    if mermaid and (resolved or as_json):
        raise usage_error(f"--mermaid and {'--resolved' if resolved else '--json'} exclude each other", "choose one")
    if (form or output) and (resolved or mermaid or (as_json and not output)):
        other = "--resolved" if resolved else "--mermaid" if mermaid else "--json"
        raise usage_error(f"a drawing and {other} exclude each other", "choose one, or write the drawing with -o FILE")
    form = form_of(form, output, force, FORMS)
    model_spec = load_spec(spec, load_catalogue(), overrides)
    graph = graph_of(model_spec)
    if resolved:
        print_text(to_json(model_spec) if as_json else to_yaml(model_spec))
        return 0
    data = model_data(model_spec, graph, batch_of(graph, batch, lengths))
    if form:
        put(
            _drawn(form, data),
            output,
            f"{len(data['nodes'])} nodes, {data['parameters']:,} parameters",
            data if as_json else None,
        )
    elif as_json:
        print_json(data)
    elif mermaid:
        from ..view.mermaid import mermaid as flowchart

        print_text(flowchart(data))
    else:
        from ..view.model_tree import cost_lines, model_tree, site_line
        from ..view.sites import fold

        groups = fold(graph.sites())
        print_rich(model_tree(data), "", *cost_lines(data), site_line([group.name for group in groups], len(data["sites"])))
    return 0


def _drawn(form: str, data: dict[str, Any]) -> str | bytes:
    from ..view.drawing.page import model_drawing, model_page

    if form == "html":
        return model_page(data)
    if form == "svg":
        from ..view.drawing.svg import svg

        return svg(model_drawing(data))
    from ..view.drawing.figure import png

    return png([(data["name"], model_drawing(data))])
