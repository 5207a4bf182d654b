"""Weight map: how the models of another library are stored, as data. `tfkit import` and `tfkit export --to hf` read them."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Entry


@dataclass(frozen=True, kw_only=True)
class WeightMap(Entry):
    """One weight map.

    Args:
        file: `"package:path"`, a YAML file in a package (see `tfkit.interop.weight_map`). Nothing in it is run.
    """

    file: str
