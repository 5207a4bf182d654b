"""`tfkit plan`: the backend of each site, on a device of this machine or another one."""

from __future__ import annotations

import re

import click

from .gpu_args import gpu_options, gpu_plan, placed_on_gpus, settings_of, step_of
from .options import (
    auto_table_option,
    backend_option,
    common,
    cpu_table_option,
    dtype_option,
    precision_option,
    set_option,
    spec_argument,
    whole,
)
from .output import print_diagnostics, print_json, print_rich
from .usage import usage_error

EPILOG = """\b
--json prints an object with `name`, `target` and `sites`: for each group of
equal sites and class of lengths `name`, `sites`, `requested`, `lengths`,
`chosen`, and `candidates` (`backend`, `accepted`, `reasons`, `depends`,
`relative_time`); `products` (with --precision int8 or bfloat16: `precision`,
`kernel`, `weights`, the rounded ones by module with their shapes, `bytes`,
and `float32_bytes`); `float32_products` (for decoding on a CPU: `kernel`,
`rule`, `table`, `weights`, `threads`); `unmeasured`, the backends that auto
never considers; and `cancelling`, the sites of a model without norms whose
gradients may be lost.
With --gpus, `training`: `gpus`, `memory`, `usable`, `batch`, `inexact`,
`choices` (from the cheapest: `sharding`, `checkpointing`, `bytes` of a rank
by purpose, `peak`, `sent`, `fits`, `available`), `chosen` and `command`, null
if nothing fits.
On cuda a site also has `sdpa_kernels`, `without_dense` and `not_installed`
(distributions with a faster backend, and how many times), and `sdpa` says how
torch chooses a kernel: `torch`, `cudnn`, `order`, `depends`, `source`.
Exit code 1 if no backend can serve some site on this target, or if the model
does not fit in the memory of --gpus.
"""


def _device(text: str) -> tuple[str, tuple[int, int] | None]:
    """`cpu`, `cuda`, or `cuda:sm90` with its compute capability."""
    if text in ("cpu", "cuda"):
        return text, None
    match = re.fullmatch(r"cuda:sm_?([1-9][0-9]?)([0-9])", text)
    if not match:
        raise ValueError(f"unknown device `{text}`; write cpu, cuda, or cuda:sm90 for compute capability 9.0")
    return "cuda", (int(match[1]), int(match[2]))


def _queries_by_keys(text: str) -> tuple[int, int]:
    """`128x512`, or `128` for both."""
    queries, cross, keys = text.partition("x")
    if not queries or (cross and not keys):
        raise ValueError(f"lengths are written 128x512 (queries x keys) or 128, `{text}` is written")
    return whole(queries), whole(keys if cross else queries)


@click.command("plan", epilog=EPILOG)
@spec_argument
@set_option
@click.option(
    "--device", "place", type=_device, metavar="DEVICE", default="cpu",
    help="cpu, cuda, or cuda:sm90 for compute capability 9.0. The device need not be in this machine.",
)  # fmt: skip
@dtype_option
@click.option("--lengths", type=_queries_by_keys, metavar="QxK", help="Queries and keys, for instance 128x512, or 128.")
@click.option("--compiled", is_flag=True, help="Under torch.compile.")
@click.option("--inference", is_flag=True, help="No gradients, no dropout.")
@precision_option
@gpu_options
@backend_option
@auto_table_option
@cpu_table_option
@common
def command(
    spec: str, overrides: tuple[str, ...], place: tuple[str, tuple[int, int] | None], dtype: str,
    lengths: tuple[int, int] | None, compiled: bool, inference: bool, precision: str, gpus: int | None, memory: int | None,
    batch_tokens: int, backend: list[str] | None, auto_table: str | None, cpu_table: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Show which attention backend each site will use, and why."""
    from ..graph import Target, graph_of
    from ..graph.plan import cancelling
    from ..spec import load_spec
    from ..view.plan_data import plan_data, planned
    from ..view.sites import all_sites, fold
    from .backend_args import catalogue_with, group_refusals, requested_backends_of
    from .batch_args import check_lengths
    from .term_origins import with_origins

    catalogue = catalogue_with(auto_table)
    described = load_spec(spec, catalogue, overrides)
    graph = graph_of(described)
    queries, keys = lengths or (None, None)
    check_lengths(graph, lengths or ())
    if precision != "float32" and (dtype != "float32" or not inference):
        message = f"--precision {precision} is for decoding with float32 activations"
        raise usage_error(message, "add --inference, leave out --dtype")
    training = gpu_plan(gpus, memory, batch_tokens, inference)
    if training is not None:
        place, dtype = placed_on_gpus(place, dtype)
    target = Target(*place, dtype, not inference, compiled, queries, keys)
    groups = fold(all_sites(graph, requested_backends_of(backend, catalogue)).items())
    plans = planned(groups, catalogue, target)
    data = plan_data(graph.name, target, plans, catalogue)
    lost = set(cancelling(graph, [plan for _, site_plans in plans for plan in site_plans]) if target.training else ())
    if cpu_table is not None and (place[0] != "cpu" or not inference or dtype != "float32"):
        raise usage_error("--cpu-table is for decoding in float32 on a CPU", "add --inference, leave out --device and --dtype")
    if place[0] == "cpu" and inference and dtype == "float32":
        from ..cpu.small_batch import products_here
        from .device import use_cpu_table

        use_cpu_table(cpu_table, "cpu")
        data["float32_products"] = products_here(catalogue.entries("float32_kernel"))
    if precision != "float32":
        from ..builder import build
        from ..nn.precision import check_precision, rounding_plan

        check_precision(precision, place[0], catalogue.entries("int8_kernel"))
        data["products"] = rounding_plan(
            build(described, catalogue, device="meta"), precision, catalogue.entries("int8_kernel")
        )
    data["cancelling"] = [group.name for group in groups if group.sites[0] in lost]
    if training is not None:
        length = max(lengths) if lengths else None
        from ..view.training_plan import training_data, training_text

        step = step_of(graph, training.tokens, length, dtype, plans)
        settings = settings_of(graph, step, training.tokens, length, dtype)
        data["training"] = training_data(graph, step, training.gpus, training.memory, settings, dtype)
    if as_json:
        print_json(data)
    else:
        from ..view.plan_text import plan_text

        print_rich(*plan_text(data), *(training_text(data["training"]) if training is not None else ()))
        print_diagnostics(with_origins(group_refusals(groups, catalogue, target), described, graph, groups), False)
    fits = training is None or data["training"]["chosen"] is not None
    return 0 if fits and all(row["chosen"] for row in data["sites"]) else 1
