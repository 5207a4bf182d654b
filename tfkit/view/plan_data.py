"""The data that `tfkit plan --json` prints.

name                  of the model
target                device, cuda_capability ([9, 0] or null), dtype, training, compiled, queries, keys (null: any)
sites                 one object for each group of equal sites and class of lengths:
                      name, sites (their full names), requested, lengths ([low, high], high null for no end; null: all),
                      chosen (null: no candidate can serve it), candidates in the order in which they are tried:
                      backend, accepted, reasons (why not), depends (on facts that are not known yet), relative_time (of a call,
                      eager = 1; null if unknown), published (a link if that figure was not measured here),
                      rows (of the table of `auto`, one for each class of lengths: dtypes, lengths, conditions, capability,
                      relative_time, measured (on what), published, estimated (how))
                      on CUDA also: sdpa_kernels, the family of torch's kernels that `sdpa` runs, `plain` without a mask and
                      `masked` with a dense one, where the site has such calls; without_dense, the unmeasured backends that
                      accept the site and prepare no dense mask; not_installed (where `auto` chooses): distributions that
                      have a backend which was measured to be faster: how many times as fast, at most
sdpa                  on CUDA: torch and cudnn (versions, null: none here), order (of the families), depends (on what), source
products              with `--precision int8` or `bfloat16`, as `tfkit.nn.precision.rounding_plan` returns it
float32_products      for decoding in float32 on a CPU: kernel (of packed weights, or null), rule (for which processors), table
                      (the file before both, or null), weights and threads (how many sizes, and which numbers of threads the
                      table has)
flash_implementation  of torch, where another one than torch's own is active in this process
training              with `--gpus`: gpus, memory and usable (bytes of each), batch (rows, lengths, precision), inexact
                      (kinds of nodes and sub-layers that do not say what they keep), choices from the cheapest (sharding,
                      checkpointing, bytes of a rank by purpose, peak, sent by collective in a step, fits, available: whether
                      `tfkit train` has it), chosen (an index) and command, null if nothing fits
unmeasured            installed backends that `auto` never considers, because they have no measured times
nan_as_zero           chosen backends that may give zeros on this device where scores are NaN or infinite (where there are any)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..attention.auto_table import AutoRow
from ..attention.backend import check_request
from ..attention.selection import auto_row
from ..catalogue import Catalogue
from ..graph import SitePlan, Target
from ..graph.flash_implementation import flash_implementation
from ..graph.plan import plan_sites, request_for
from ..graph.sdpa_kernels import facts, families
from .sites import SiteGroup

CONDITIONS = {
    "gradients": ("gradients", "no gradients"),
    "dropout": ("dropout", "no dropout"),
    "causal": ("causal", "not causal"),
    "masked": ("masked", "not masked"),
    "windowed": ("a window", "no window"),
    "biased": ("biased", "no bias"),
    "bias_gradient": ("a bias that learns", "no bias that learns"),
    "decoding": ("one query", "more than one query"),
    "compiled": ("compiled", "not compiled"),
}
"""The text of each condition of a row: if true, if false."""


LIMITS = {"head_dims": "head dims", "scores": "scores"}


def row_data(row: AutoRow) -> dict[str, Any]:
    """A row as JSON data.

    Args:
        row: a row of the table.

    Returns:
        `dtypes`, `lengths`, `head_dims`, `scores` and `biases` where they are limited, `conditions`, `capability`,
        `relative_time`, `measured`, `published` and `estimated`.
    """
    conditions = {name: getattr(row, name) for name in CONDITIONS if getattr(row, name) is not None}
    limits = {name: list(getattr(row, name)) for name in LIMITS if getattr(row, name) != (1, None)}
    kinds = {"biases": sorted(row.biases)} if row.biases else {}
    return {
        "dtypes": sorted(row.dtypes), "lengths": list(row.lengths), **limits, **kinds, "conditions": conditions,
        "capability": list(row.capability) if row.capability else None, "relative_time": row.relative_time,
        "measured": row.measured or None, "published": row.published or None, "estimated": row.estimated or None,
    }  # fmt: skip


def row_in_words(row: Mapping[str, Any]) -> str:
    """A row as text.

    Args:
        row: the data of the row, from `row_data`.

    Returns:
        `float32, lengths 97 up, no gradients, no dropout`.
    """
    low, high = row["lengths"]
    lengths = "any length" if (low, high) == (1, None) else f"lengths {_range(low, high)}"
    limits = [f"{words} {_range(*row[name])}" for name, words in LIMITS.items() if name in row]
    limits += [f"{kind} bias" for kind in row.get("biases", ())]
    return ", ".join(
        [*row["dtypes"], lengths, *limits, *(CONDITIONS[name][not holds] for name, holds in row["conditions"].items())]
    )


def _range(low: int, high: int | None) -> str:
    return f"{low} {'up' if high is None else f'to {high}'}"


Planned = tuple[SiteGroup, list[SitePlan]]


def planned(groups: Sequence[SiteGroup], catalogue: Catalogue, target: Target) -> list[Planned]:
    """The plans of each group of equal sites: one, or one for each class of lengths if the choice differs."""
    plans = plan_sites([(group.sites[0], group.site) for group in groups], catalogue, target)
    return list(zip(groups, plans, strict=True))


def plan_data(name: str, target: Target, plans: Sequence[Planned], catalogue: Catalogue) -> dict[str, Any]:
    sdpa = facts(target.cuda_capability) if target.device == "cuda" else None
    rows = [
        _row(group, plan) | (_on_cuda(group, plan, target, catalogue, sdpa) if sdpa else {})
        for group, site_plans in plans
        for plan in site_plans
    ]
    chosen = {plan.chosen for _, site_plans in plans for plan in site_plans}
    hiding = [
        entry.name
        for entry in catalogue.entries("backend")
        if entry.name in chosen and target.device in entry.capabilities.numerics.nan_as_zero
    ]
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
        **({"flash_implementation": implementation} if (implementation := flash_implementation()) else {}),
        **({"sdpa": sdpa} if sdpa else {}),
        "sites": rows,
        "unmeasured": [entry.name for entry in catalogue.entries("backend") if not entry.auto],
        **({"nan_as_zero": hiding} if hiding else {}),
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
                "backend": candidate.backend,
                "accepted": candidate.verdict.accepted,
                "reasons": list(candidate.verdict.refused),
                "depends": list(candidate.verdict.depends),
                "relative_time": candidate.relative_time,
                "published": (candidate.rows[-1].published or None) if candidate.rows else None,
                "rows": [row_data(row) for row in candidate.rows],
            }
            for candidate in plan.candidates
        ],
    }


def _on_cuda(group: SiteGroup, plan: SitePlan, target: Target, catalogue: Catalogue, sdpa: Mapping[str, Any]) -> dict[str, Any]:
    request = request_for(group.site, target)
    dense_free = [
        entry.name for entry, options in catalogue.ready("backend")
        if auto_row(entry, request) is None and entry.prepare is None and check_request(entry, request, options).accepted
    ]  # fmt: skip
    return {
        "sdpa_kernels": families(request, tuple(sdpa["order"])),
        "without_dense": dense_free,
        "not_installed": dict(plan.not_installed),
    }


def faster_elsewhere_in_words(sites: Sequence[tuple[str, Mapping[str, float]]]) -> list[str]:
    """A line for each distribution that is not installed and has a faster backend, from the gains of each site: `tfkit-fused,
    which is not installed, was measured to be faster: encoder.0-5.self_attention 9.0 x`."""
    gains: dict[str, dict[str, float]] = {}
    for site, times in sites:
        for name, factor in times.items():
            gains.setdefault(name, {})[site] = max(factor, gains.get(name, {}).get(site, 0.0))
    lines = []
    for name, factors in gains.items():
        where = ", ".join(f"{site} {factor:.1f} x" for site, factor in factors.items())
        lines.append(f"{name}, which is not installed, was measured to be faster: {where}")
    return lines


def in_short(plans: Sequence[SitePlan]) -> str:
    """The choices at a site by class of lengths: `eager to 64, sdpa from 65`."""
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
