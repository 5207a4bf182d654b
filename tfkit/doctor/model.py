"""What of a model would run where: the backend of each attention site on every device of this machine."""

from __future__ import annotations

from typing import Any

from ..catalogue import Catalogue
from ..graph import Graph, Target, refusals
from ..view.plan_data import in_short, planned
from ..view.sites import all_sites, fold
from .finding import Findings


def model_here(
    graph: Graph, dtype: str, item_size: int, devices: list[dict[str, Any]], catalogue: Catalogue, findings: Findings
) -> dict[str, Any]:
    """The plan on each device. A model that fits on none, and a site that no device can serve, are problems."""
    groups = fold(all_sites(graph).items())
    size = (graph.parameters() + graph.parameters(trainable=False)) * item_size
    rows, served = [], set()
    for device in devices:
        kind, capability = device["name"].partition(":")[0], device["cuda_capability"]
        targets = [Target(kind, tuple(capability) if capability else None, dtype, training) for training in (True, False)]
        plans = [planned(groups, catalogue, target) for target in targets]
        for (group, training), (_, inference) in zip(*plans, strict=True):
            chosen = [in_short(each) if all(plan.chosen for plan in each) else None for each in (training, inference)]
            rows.append({"name": group.name, "device": device["name"], "training": chosen[0], "inference": chosen[1]})
            if chosen[1] is not None:
                served.add(group.name)
    for group in groups:
        if group.name not in served:
            for diagnostic in refusals([(group.name, group.site)], catalogue, Target("cpu", None, dtype, False)):
                findings.problem(
                    f"no device here can serve {group.name}: {diagnostic.message}", diagnostic.fix or "change `backend`"
                )
    if all(size > device["memory_bytes"] for device in devices):
        largest = max(device["memory_bytes"] for device in devices)
        what = f"the weights need {size:,} bytes in {dtype}, and the largest memory here has {largest:,}"
        findings.problem(what, "make the model smaller, or choose a smaller dtype")
    return {"name": graph.name, "dtype": dtype, "weight_bytes": size, "sites": rows}
