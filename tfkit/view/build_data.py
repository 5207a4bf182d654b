"""The data that `tfkit build --json` prints: `model_data`, the dry run, and the backends chosen on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..catalogue import Catalogue
from ..graph import Batch, Graph, Target, max_input_lengths
from ..slots.options import Component
from ..spec import ModelSpec
from .model_data import model_data
from .plan_data import in_short, planned
from .sites import all_sites, fold

Shapes = Mapping[str, tuple[int, ...]]


def build_data(
    spec: ModelSpec,
    graph: Graph,
    catalogue: Catalogue,
    target: Target,
    requested: tuple[Component, ...] | None,
    inputs: Shapes,
    outputs: Shapes,
) -> dict[str, Any]:
    """`model_data` for the batch of the dry run, with `device`, `dtype`, `trial` and `backends`: by group of sites, the backend
    for training, or for inference if none can train."""
    varying = max_input_lengths(graph)
    sizes = {name: shape[1] for name, shape in inputs.items() if name in varying}
    size = next(iter(inputs.values()))[0]
    sites = all_sites(graph, requested)
    chosen = {}
    for group, plans in planned(fold(sites.items()), catalogue, target):
        if any(plan.chosen is None for plan in plans):
            [(_, plans)] = planned([group], catalogue, replace(target, training=False))
            chosen[group.name] = f"{in_short(plans)} (inference only)"
        else:
            chosen[group.name] = in_short(plans)
    return {
        **model_data(spec, graph, Batch(size, sizes), requested),
        "device": target.device,
        "dtype": target.dtype,
        "trial": {
            "inputs": {name: list(shape) for name, shape in inputs.items()},
            "outputs": {name: list(shape) for name, shape in outputs.items()},
        },
        "backends": chosen,
    }
