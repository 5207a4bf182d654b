"""`tfkit show`: what a spec describes, without building it."""

from __future__ import annotations

import argparse

from .arguments import Parser, add_common, add_spec, lengths_by_input, usage_error, whole
from .output import print_json, print_rich, print_text

EPILOG = """\
--json prints an object with `name`, `parameters`, `nodes` (each with `name`,
`kind`, `shape`, `parameters`, `layers`, `flops`, ...), `sites`, `batch`,
`flops`, `activation_elements`, ...; with --resolved, the resolved spec.
FLOPs count matrix products, a multiply-add as two."""


def arguments(parser: Parser) -> None:
    add_spec(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--resolved", action="store_true", help="print the spec with everything filled in; loads back equal")
    form.add_argument("--mermaid", action="store_true", help="print a Mermaid flowchart")
    parser.add_argument("--batch", metavar="N", type=whole, default=1, help="rows of the batch for the costs (default 1)")
    parser.add_argument(
        "--lengths", metavar="INPUT=N,...", type=lengths_by_input,
        help="positions of each input, for instance source=32,target=32 (default 32 each)",
    )  # fmt: skip
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    from ..catalogue import load_catalogue
    from ..graph import graph_of
    from ..spec import load_spec, to_json, to_yaml
    from ..view.model_data import model_data
    from .batch_args import batch_of

    if options.mermaid and options.json:
        raise usage_error("--mermaid and --json exclude each other", "choose one")
    spec = load_spec(options.spec, load_catalogue(), options.overrides)
    graph = graph_of(spec)
    if options.resolved:
        print_text(to_json(spec) if options.json else to_yaml(spec))
        return 0
    data = model_data(spec, graph, batch_of(graph, options.batch, options.lengths))
    if options.json:
        print_json(data)
    elif options.mermaid:
        from ..view.mermaid import mermaid

        print_text(mermaid(data))
    else:
        from ..view.model_tree import cost_lines, model_tree, site_line
        from ..view.sites import fold

        groups = fold(graph.sites())
        print_rich(model_tree(data), "", *cost_lines(data), site_line([group.name for group in groups], len(data["sites"])))
    return 0
