"""Chooses a backend among candidates, without torch. `tfkit plan` and a running model use the same two functions.

Of the candidates that accept a request, `auto` chooses the one with the smallest `relative_time` (eager = 1.0) for that class
of calls. It skips candidates without a measured row. Without `auto` the first candidate that accepts is chosen.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ..errors import Diagnostic
from .auto_table import AutoRow, AutoTable
from .backend import AttentionBackend, Verdict, check_request
from .capabilities import AttentionRequest

Candidate = tuple[AttentionBackend, Any]
ELSEWHERE = {"fused": ("tfkit-fused", AutoTable("tfkit.builtin.attention", ("auto_h100.json",), "fused"))}
"""Measured backends that need not be installed: their distributions and tables."""
WORTH = 0.9
"""A distribution that is not installed is named where it takes at most this share of the time."""


def auto_row(backend: AttentionBackend, request: AttentionRequest) -> AutoRow | None:
    """The first row of `backend` that covers the request, or None."""
    return next((row for row in backend.auto if row.covers(request)), None)


def faster_elsewhere(request: AttentionRequest, chosen: float | None, candidates: Collection[Candidate]) -> dict[str, float]:
    """How many times as fast as the chosen one, with its relative time, backends are that are not installed, where it is worth
    it: by distribution."""
    installed = {entry.name for entry, _ in candidates}
    if chosen is None or request.device != "cuda" or request.score != "dot" or request.weights:
        return {}
    faster = {}
    for name, (distribution, table) in ELSEWHERE.items():
        row = next((row for row in table if row.covers(request)), None)
        if name not in installed and row is not None and row.relative_time <= WORTH * chosen:
            faster[distribution] = chosen / row.relative_time
    return faster


def ranked(candidates: list[Candidate], request: AttentionRequest, automatic: bool) -> list[tuple[int, Verdict]]:
    """The indices of the candidates with their verdicts, in the order in which they are tried."""
    verdicts = [(index, check_request(entry, request, options)) for index, (entry, options) in enumerate(candidates)]
    if not automatic:
        return verdicts
    timed = []
    for index, verdict in verdicts:
        row = auto_row(candidates[index][0], request)
        if row is None:
            verdict = Verdict((*verdict.refused, "`auto` has no figure for this class of calls"), verdict.depends)
        timed.append((row.relative_time if row is not None else float("inf"), index, verdict))
    return [(index, verdict) for _, index, verdict in sorted(timed, key=lambda candidate: candidate[:2])]


def refusal(
    site: str,
    requested: str,
    order: list[tuple[int, Verdict]],
    candidates: list[Candidate],
    request: AttentionRequest,
    others: tuple[Candidate, ...],
) -> Diagnostic:
    """One message: the request, why each candidate refuses, and which installed backends would work."""
    reasons = "; ".join(
        f"{candidates[index][0].name}: {', '.join(verdict.refused)}" for index, verdict in order if not verdict.accepted
    )
    tried = {candidates[index][0].name for index, _ in order}
    able = [
        entry.name for entry, options in others if entry.name not in tried and check_request(entry, request, options).accepted
    ]
    ways = [f"backends that would work here: {', '.join(able)}"] if able else []
    if elsewhere := _other_devices(candidates, request):
        ways.append(f"move the model to {' or '.join(elsewhere)}")
    fix = "; or ".join(ways) or "no installed backend can do this"
    return Diagnostic("TFK060", f"backend {requested} cannot serve this site: {reasons}", fix, path=site)


def _other_devices(candidates: list[Candidate], request: AttentionRequest) -> list[str]:
    """The other kinds of device on which a candidate can serve the request."""
    if request.device is None:
        return []
    kinds = {device.kind for entry, _ in candidates for device in entry.capabilities.devices} - {request.device}
    return [
        kind
        for kind in sorted(kinds)
        if any(
            check_request(entry, replace(request, device=kind, cuda_capability=None), options).accepted
            for entry, options in candidates
        )
    ]
