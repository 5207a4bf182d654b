"""The weight map of OPT."""

from __future__ import annotations

from tfkit.plugin import WeightMap, hookimpl


@hookimpl
def tfkit_weight_maps() -> list[WeightMap]:
    return [WeightMap(name="opt", summary="OPT with norms before the sub-layers", file="tfkit_opt:opt.yaml")]
