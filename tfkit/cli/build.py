"""`tfkit build`: build a spec, run the model once, and save it if requested."""

from __future__ import annotations

from pathlib import Path

import click

from .options import (
    WRITE,
    auto_table_option,
    backend_option,
    common,
    dtype_option,
    large_option,
    run_device_option,
    seed,
    set_option,
    spec_argument,
)
from .output import print_json, print_rich
from .packages import import_torch

EPILOG = """\b
--json prints what `tfkit show --json` prints, and `device`, `dtype`, `seed`,
`trial` (`inputs` and `outputs`: shapes by node), `backends` (for each group
of equal sites, the backend chosen for training) and `directory` (null without
-o). The trial is one forward pass on random ids, with the lengths in `trial`.
"""


@click.command("build", epilog=EPILOG)
@spec_argument
@set_option
@click.option("-o", "--output", metavar="DIR", type=WRITE, help="Save the model: resolved spec, weights, plan, versions.")
@click.option("--force", is_flag=True, help="Replace a model that is saved there already.")
@run_device_option
@dtype_option
@click.option("--seed", "number", metavar="N", type=seed, default=0, help="Seed of the initial weights.")
@backend_option
@auto_table_option
@large_option
@common
def command(
    spec: str, overrides: tuple[str, ...], output: str | None, force: bool, device: str, dtype: str, number: int,
    backend: list[str] | None, auto_table: str | None, large: bool, as_json: bool,
) -> int:  # fmt: skip
    """Build and initialise a model, run it once, and save it if -o is given."""
    from ..graph import check_sublayers, graph_of, max_input_lengths
    from ..spec import load_spec
    from .backend_args import catalogue_with, check_auto, check_served, requested_backends_of

    check_auto(backend, auto_table)
    catalogue = catalogue_with(auto_table)
    model_spec = load_spec(spec, catalogue, overrides)
    graph = graph_of(model_spec)
    if not large:
        check_sublayers(model_spec, graph)
    requested = requested_backends_of(backend, catalogue)

    import_torch()  # late: a wrong spec is reported without waiting for torch
    import torch

    from ..builder import build, check_fits
    from ..io import save
    from ..io.replacing import check_place
    from ..view.build_data import build_data
    from .device import allocating, check_output, chosen_device, device_here, target_of
    from .dry_run import trial_batch, try_once

    device = chosen_device(device)
    device_here(device)
    target = target_of(device, dtype)
    check_served(model_spec, graph, catalogue, target, requested)
    if output is not None:
        check_place(Path(output), force)
    lengths = max_input_lengths(graph)
    check_fits(model_spec, graph, torch.device(device), getattr(torch, dtype), trial_batch(lengths))
    with allocating(device):
        model = build(model_spec, catalogue, device=device, dtype=getattr(torch, dtype), seed=number, backend=backend)
        dry_run = try_once(model, lengths, device, number)
    check_output(dry_run.not_finite)
    if output is not None:
        save(model, output, overwrite=force, catalogue=catalogue)
    data = build_data(model_spec, graph, catalogue, target, requested, dry_run.inputs, dry_run.outputs)
    data |= {"seed": number, "directory": output}
    if as_json:
        print_json(data)
    else:
        from ..view.model_tree import build_text

        print_rich(*build_text(data))
    return 0
