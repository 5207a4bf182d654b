"""Which backend each site gets, as `tfkit plan --json` prints it.

name                  of the model
target                device, cuda_capability ([9, 0] or null), dtype, training, compiled, queries, keys (null: any)
sites                 one object for each group of equal sites and class of lengths:
                      name, sites (their full names), requested, lengths ([low, high], high null for no end; null: all),
                      chosen (null: nothing can serve it), candidates in the order in which they are tried:
                      backend, accepted, reasons (why not), depends (on what is not known yet), relative_time (of a call,
                      eager = 1; null where no figure is known), published (a link where that figure was not measured),
                      rows (of the table of `auto`, one for each class of lengths: dtypes, lengths, conditions, capability,
                      relative_time, measured (on what), published)
unmeasured            installed backends that `auto` never considers, because they bring no figures
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..catalogue import Catalogue
from ..graph import SitePlan, Target
from ..graph.plan import plan_site
from .auto_formatting import row_data
from .sites import SiteGroup

Planned = tuple[SiteGroup, list[SitePlan]]


def planned(groups: Sequence[SiteGroup], catalogue: Catalogue, target: Target) -> list[Planned]:
    """The plans of every group of equal sites: one, or one for each class of lengths where the answer differs."""
    return [(group, plan_site(group.sites[0], group.site, catalogue, target)) for group in groups]


def plan_data(name: str, target: Target, plans: Sequence[Planned], catalogue: Catalogue) -> dict[str, Any]:
    return {
        "name": name,
        "target": {
            "device": target.device,
            "cuda_capability": list(target.cuda_capability) if target.cuda_capability else None,
            "dtype": target.dtype,
            "training": target.training,
            "compiled": target.compiled,
            "queries": target.queries,
            "keys": target.keys,
        },
        "sites": [_row(group, plan) for group, rows in plans for plan in rows],
        "unmeasured": [entry.name for entry in catalogue.entries("backend") if not entry.auto],
    }


def _row(group: SiteGroup, plan: SitePlan) -> dict[str, Any]:
    return {
        "name": group.name,
        "sites": list(group.sites),
        "requested": plan.requested,
        "lengths": list(plan.lengths) if plan.lengths else None,
        "chosen": plan.chosen,
        "candidates": [
            {
                "backend": judged.backend,
                "accepted": judged.verdict.accepted,
                "reasons": list(judged.verdict.refused),
                "depends": list(judged.verdict.depends),
                "relative_time": judged.relative_time,
                "published": (judged.rows[-1].published or None) if judged.rows else None,
                "rows": [row_data(row) for row in judged.rows],
            }
            for judged in plan.judgements
        ],
    }


def in_short(plans: Sequence[SitePlan]) -> str:
    """What is chosen at a site, class by class: `eager to 64, sdpa from 65`."""
    if len(plans) == 1:
        return plans[0].chosen or "none"
    return ", ".join(f"{plan.chosen or 'none'} {lengths_in_words(plan.lengths)}" for plan in plans)


def lengths_in_words(lengths: tuple[int, int | None] | list[int | None] | None) -> str:
    """`to 64`, `65 to 256`, `from 257`."""
    if lengths is None:
        return "any length"
    low, high = lengths
    if high is None:
        return "any length" if low == 1 else f"from {low}"
    return f"to {high}" if low == 1 else f"{low} to {high}"
