"""`tfkit build`: a spec becomes a model, runs once, and is saved if wanted."""

from __future__ import annotations

import argparse
from pathlib import Path

from .arguments import Parser, add_auto_table, add_backend, add_common, add_device, add_dtype, add_spec, place, seed
from .output import print_json, print_rich

EPILOG = """\
--json prints what `tfkit show --json` prints, and `device`, `dtype`, `seed`,
`trial` (`inputs` and `outputs`: shapes by node), `backends` (by group of
equal sites: what is chosen in training) and `directory` (null without -o).
The forward is a trial on random ids with the lengths that `trial` says."""


def arguments(parser: Parser) -> None:
    add_spec(parser)
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=place, help="save the model: resolved spec, weights, plan, versions"
    )
    parser.add_argument("--force", action="store_true", help="replace a model that is saved there already")
    add_device(parser)
    add_dtype(parser)
    parser.add_argument("--seed", metavar="N", type=seed, default=0, help="of the initial weights (default 0)")
    add_backend(parser)
    add_auto_table(parser)
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    from ..graph import graph_of, max_input_lengths
    from ..spec import load_spec
    from .backend_args import catalogue_of, check_auto, check_served, requested_backends_of

    check_auto(options)
    catalogue = catalogue_of(options)
    spec = load_spec(options.spec, catalogue, options.overrides)
    graph = graph_of(spec)
    requested = requested_backends_of(options.backend, catalogue)

    import torch  # only a spec without faults is worth the wait

    from ..builder import build
    from ..io import save
    from ..io.replacing import check_place
    from ..view.build_data import build_data
    from .device import allocating, check_device, check_output, target_of
    from .dry_run import try_once

    check_device(options.device)
    target = target_of(options.device, options.dtype)
    check_served(graph, catalogue, target, requested)
    if options.output is not None:
        check_place(Path(options.output), options.force)
    with allocating(options.device):
        model = build(
            spec,
            catalogue,
            device=options.device,
            dtype=getattr(torch, options.dtype),
            seed=options.seed,
            backend=options.backend,
        )
        dry_run = try_once(model, max_input_lengths(graph), options.device, options.seed)
    check_output(dry_run.not_finite)
    if options.output is not None:
        save(model, options.output, overwrite=options.force, catalogue=catalogue)
    data = build_data(spec, graph, catalogue, target, requested, dry_run.inputs, dry_run.outputs)
    data |= {"seed": options.seed, "directory": options.output}
    if options.json:
        print_json(data)
    else:
        from ..view.build_text import build_text

        print_rich(*build_text(data))
    return 0
