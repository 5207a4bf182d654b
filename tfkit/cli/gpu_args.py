"""The options of `tfkit plan` for training on several GPUs, and what they ask for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from .options import Declared, whole
from .usage import usage_error

if TYPE_CHECKING:
    from ..graph import Graph
    from ..graph.training import Step
    from ..view.plan_data import Planned

SIZES = {"MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}
MOST = 2**16
"""GPUs that can be planned for."""
PRECISIONS = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number in a product, by the `precision` of a recipe."""
USUAL_LENGTH = 256
"""Positions per row: the default of `batching.max_length` in a recipe."""


def size(text: str) -> int:
    """Parse a size in bytes: `80GB` is 80e9 bytes, `80GiB` 80 * 2^30. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)\s*([MG]i?B)", text)
    if not match or float(match[1]) == 0:
        raise ValueError(f"a size is written 80GB or 80GiB, `{text}` is written")
    return int(float(match[1]) * SIZES[match[2]])


def _gpus(text: str) -> int:
    count = whole(text)
    if count > MOST:
        raise ValueError(f"at most {MOST:,} GPUs are planned for, `{text}` is written")
    return count


def gpu_options(command: Declared) -> Declared:
    """Add --gpus, --memory and --batch-tokens."""
    for option in (
        click.option("--batch-tokens", type=whole, metavar="N", default=4096, help="Tokens of a batch of one GPU."),
        click.option("--memory", type=size, metavar="SIZE", help="With --gpus: the memory of each, for instance 80GB."),
        click.option("--gpus", type=_gpus, metavar="N", help="Plan the memory of training on N GPUs, too."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class GpuPlan:
    """What --gpus asks for: the number of GPUs, the bytes of each, and the tokens of a batch of one."""

    gpus: int
    memory: int
    tokens: int


def gpu_plan(gpus: int | None, memory: int | None, tokens: int, inference: bool) -> GpuPlan | None:
    """What the options ask for; None without --gpus. Raises UsageError."""
    gpu_options = [name for name in ("memory", "batch_tokens") if _is_given(name)]
    if gpus is None:
        if gpu_options:
            raise usage_error(f"--{gpu_options[0].replace('_', '-')} belongs to --gpus", "add --gpus N")
        return None
    if memory is None:
        raise usage_error("--gpus needs the memory of a GPU", "add for instance --memory 80GB")
    if inference:
        raise usage_error("--gpus plans training, and --inference is given", "leave one of them out")
    return GpuPlan(gpus, memory, tokens)


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def placed_on_gpus(place: tuple[str, tuple[int, int] | None], dtype: str) -> tuple[tuple[str, tuple[int, int] | None], str]:
    """The device and the dtype for --gpus: CUDA and bfloat16 unless they are written. Raises UsageError."""
    place = place if _is_given("place") else ("cuda", None)
    dtype = dtype if _is_given("dtype") else "bfloat16"
    if place[0] != "cuda":
        raise usage_error("--gpus plans CUDA devices, and --device cpu is given", "leave --device out, or write cuda:sm90")
    if dtype not in PRECISIONS:
        raise usage_error(f"models are not trained in {dtype}", f"precisions of a recipe: {', '.join(PRECISIONS)}")
    return place, dtype


def step_of(graph: Graph, tokens: int, length: int | None, dtype: str, plans: Sequence[Planned]) -> Step:
    """A step of one GPU: rows of `length` positions, as many as have `tokens` tokens on their longer side.

    Args:
        graph: the model.
        tokens: tokens of a batch.
        length: positions of a row; None for those of a recipe, or fewer if a position table or the batch has fewer.
        dtype: the precision.
        plans: the backends of the attention sites. `eager` keeps the attention weights for the backward pass, and so does sdpa
            for a bias in a half dtype, which only its kernel "math" computes exactly (`builtin/attention/sdpa.py`).
    """
    from ..graph import Batch, max_input_lengths
    from ..graph.training import Step

    limits = max_input_lengths(graph)
    fixed = max((node.signal.length for node in graph.inputs() if isinstance(node.signal.length, int)), default=0)
    usual = min([length or USUAL_LENGTH, tokens])
    lengths = {name: min(usual, limit or usual) for name, limit in limits.items()}
    longest = max([fixed, *lengths.values(), 1])
    weighted = {
        f"{plan.site.split('.')[0]}.{plan.site.rpartition('.')[2]}"
        for group, site_plans in plans
        for plan in site_plans
        if plan.chosen == "eager" or (plan.chosen == "sdpa" and group.site.bias is not None and dtype != "float32")
    }
    return Step(Batch(max(1, tokens // longest), lengths), PRECISIONS[dtype], frozenset(weighted))


def settings_of(graph: Graph, step: Step, tokens: int, length: int | None, dtype: str) -> list[str]:
    """The changes of a recipe that make it compute such steps."""
    if not step.batch.lengths:
        changes = [f"batching.images={step.batch.size}"]
    else:
        changes = [f"batching.tokens={tokens}"]
        changes += [f"batching.max_length={max(step.batch.lengths.values())}"] if length else []
    return [*changes, f"precision={dtype}"]
