"""`tfkit plan`: which backend each site will use, on a device that need not be there."""

from __future__ import annotations

import argparse

from .arguments import Parser, add_auto_table, add_backend, add_common, add_dtype, add_spec, planned_device, queries_by_keys
from .output import print_diagnostics, print_json, print_rich

EPILOG = """\
--json prints an object with `name`, `target` and `sites`: for each group of
equal sites and class of lengths `name`, `sites`, `requested`, `lengths`,
`chosen`, and `candidates` (`backend`, `accepted`, `reasons`, `depends`,
`relative_time`); `unmeasured`, the backends that auto never considers; and
`cancelling`, the sites of a model without norms whose gradients may be lost.
Exit code 1 if nothing can serve some site on this target."""


def arguments(parser: Parser) -> None:
    add_spec(parser)
    parser.add_argument(
        "--device", type=planned_device, default=("cpu", None), metavar="DEVICE",
        help="cpu, cuda, or cuda:sm90 for compute capability 9.0 (default cpu)",
    )  # fmt: skip
    add_dtype(parser)
    parser.add_argument("--lengths", metavar="QxK", type=queries_by_keys, help="queries and keys, for instance 128x512, or 128")
    parser.add_argument("--compiled", action="store_true", help="under torch.compile")
    parser.add_argument("--inference", action="store_true", help="no gradients, no dropout")
    add_backend(parser)
    add_auto_table(parser)
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    from ..graph import Target, graph_of
    from ..graph.plan import cancelling
    from ..spec import load_spec
    from ..view.plan_data import plan_data, planned
    from ..view.sites import all_sites, fold
    from .backend_args import catalogue_of, refusals, requested_backends_of
    from .batch_args import check_lengths

    catalogue = catalogue_of(options)
    graph = graph_of(load_spec(options.spec, catalogue, options.overrides))
    queries, keys = options.lengths or (None, None)
    check_lengths(graph, options.lengths or ())
    device, capability = options.device
    target = Target(device, capability, options.dtype, not options.inference, options.compiled, queries, keys)
    groups = fold(all_sites(graph, requested_backends_of(options.backend, catalogue)).items())
    plans = planned(groups, catalogue, target)
    data = plan_data(graph.name, target, plans, catalogue)
    lost = set(cancelling(graph, [plan for _, found in plans for plan in found]) if target.training else ())
    data["cancelling"] = [group.name for group in groups if group.sites[0] in lost]
    if options.json:
        print_json(data)
    else:
        from ..view.plan_text import plan_text

        print_rich(*plan_text(data))
        print_diagnostics(refusals(groups, catalogue, target), False)
    return 0 if all(row["chosen"] for row in data["sites"]) else 1
