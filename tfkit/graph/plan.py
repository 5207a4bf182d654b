"""Which backend each attention site will use on a device that may not be there, and every reason why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..attention.auto_table import AutoRow
from ..attention.backend import AttentionBackend, Verdict
from ..attention.capabilities import AttentionRequest
from ..attention.selection import auto_row, ranked, refusal
from ..catalogue import Catalogue
from ..errors import BackendRefused, Diagnostic
from ..slots.layer import layer_paths
from ..slots.options import Component
from ..slots.sublayer import AttentionSite
from .model_graph import Graph, Node, base, layers_of


@dataclass(frozen=True)
class Target:
    """Where and how the model will run: `device` (`cpu`, `cuda`; None: not known yet), its compute capability if CUDA, dtype,
    whether it trains (gradients, dropout), whether it is compiled, and lengths where they are known."""

    device: str | None = "cpu"
    cuda_capability: tuple[int, int] | None = None
    dtype: str | None = "float32"
    training: bool = True
    compiled: bool = False
    queries: int | None = None
    keys: int | None = None


@dataclass(frozen=True)
class Judgement:
    """One candidate at one site: its verdict, and the rows that `auto` has for it there: none, or one for each class of
    lengths that the plan speaks of."""

    backend: str
    verdict: Verdict
    rows: tuple[AutoRow, ...] = ()

    @property
    def relative_time(self) -> float | None:
        """Its time relative to eager's, at the longest lengths."""
        return self.rows[-1].relative_time if self.rows else None


@dataclass(frozen=True)
class SitePlan:
    """What was requested at a site, what will be used (None: nothing can), and the judgement of every candidate in the order
    in which they are tried; `lengths` is the class of max(Q, K) it speaks of, None for any."""

    site: str
    requested: str
    chosen: str | None
    judgements: tuple[Judgement, ...]
    lengths: tuple[int, int | None] | None = None


def candidates_for(requested: tuple[Component, ...], catalogue: Catalogue) -> tuple[list[tuple[AttentionBackend, Any]], bool]:
    """The backends that a wish allows, with their options, and whether `auto` orders them."""
    if any(part.kind == "auto" for part in requested):
        return [(entry, options) for entry, options in catalogue.ready("backend") if entry.auto], True
    return [(part.entry, part.options) for part in requested], False


def request_for(site: AttentionSite, target: Target) -> AttentionRequest:
    """What a site asks of a backend on a target."""
    return AttentionRequest(
        device=target.device,
        cuda_capability=target.cuda_capability,
        dtype=target.dtype,
        head_dim=site.head_dim,
        value_dim=site.head_dim,
        queries=target.queries,
        keys=target.keys,
        mask_terms=site.mask_terms,
        bias=site.bias,
        bias_gradient=site.bias_gradient and target.training,
        dropout=site.dropout > 0.0 and target.training,
        grouped=site.heads != site.kv_heads,
        softcap=site.softcap is not None,
        score=site.score,
        gradients=target.training,
        compiled=target.compiled,
    )


def plan_site(name: str, site: AttentionSite, catalogue: Catalogue, target: Target) -> list[SitePlan]:
    """One plan, or one for each class of lengths where `auto` answers differently."""
    candidates, automatic = candidates_for(site.backend, catalogue)
    requested = "auto" if automatic else ", ".join(part.kind for part in site.backend)
    if automatic and target.queries is None:
        plans = [
            _planned(name, requested, site, candidates, True, _at(target, low), (low, high))
            for low, high in _classes(candidates)
        ]
        merged: list[SitePlan] = []
        for plan in plans:
            if merged and merged[-1].chosen == plan.chosen and merged[-1].lengths and plan.lengths:
                plan = _joined(merged.pop(), plan)
            merged.append(plan)
        return merged
    return [_planned(name, requested, site, candidates, automatic, target, None)]


def _joined(shorter: SitePlan, longer: SitePlan) -> SitePlan:
    """One plan of two classes of lengths with one answer, with the rows of both."""
    earlier = {judged.backend: judged.rows for judged in shorter.judgements}
    judged = tuple(
        replace(each, rows=(*earlier[each.backend], *(row for row in each.rows if row not in earlier[each.backend])))
        for each in longer.judgements
    )
    assert shorter.lengths is not None
    assert longer.lengths is not None
    return replace(longer, judgements=judged, lengths=(shorter.lengths[0], longer.lengths[1]))


def _classes(candidates: list[tuple[AttentionBackend, Any]]) -> list[tuple[int, int | None]]:
    ends = sorted({row.lengths[1] for entry, _ in candidates for row in entry.auto if row.lengths[1]})
    starts = [1, *(end + 1 for end in ends)]
    return list(zip(starts, [*ends, None], strict=True))


def _at(target: Target, length: int) -> Target:
    """The target at a length of its class; two queries, since a single one is decoding and a class of its own."""
    return replace(target, queries=max(length, 2), keys=max(length, 2))


def _planned(
    name: str,
    requested: str,
    site: AttentionSite,
    candidates: list[tuple[AttentionBackend, Any]],
    automatic: bool,
    target: Target,
    lengths: tuple[int, int | None] | None,
) -> SitePlan:
    request = request_for(site, target)
    order = ranked(candidates, request, automatic)
    judged = tuple(_judgement(candidates[index][0], verdict, request) for index, verdict in order)
    chosen = next((judgement.backend for judgement in judged if judgement.verdict.accepted), None)
    return SitePlan(name, requested, chosen, judged, lengths)


def _judgement(backend: AttentionBackend, verdict: Verdict, request: AttentionRequest) -> Judgement:
    row = auto_row(backend, request)
    return Judgement(backend.name, verdict, () if row is None else (row,))


def plan(graph: Graph, catalogue: Catalogue, target: Target) -> list[SitePlan]:
    """The plan of every site of a model."""
    return [plan for name, site in graph.sites() for plan in plan_site(name, site, catalogue, target)]


def refusals(graph: Graph, catalogue: Catalogue, target: Target) -> list[Diagnostic]:
    """A fault for every site that no allowed backend can serve on this target."""
    others = catalogue.ready("backend")
    diagnostics = []
    for name, site in graph.sites():
        candidates, automatic = candidates_for(site.backend, catalogue)
        request = request_for(site, target)
        order = ranked(candidates, request, automatic)
        if not any(verdict.accepted for _, verdict in order):
            requested = "auto" if automatic else ", ".join(part.kind for part in site.backend)
            diagnostics.append(refusal(name, requested, order, candidates, request, others))
    return diagnostics


def check_backends(graph: Graph, catalogue: Catalogue, target: Target) -> None:
    """Raises BackendRefused where a site has no backend on this target, all sites in one message."""
    diagnostics = refusals(graph, catalogue, target)
    if diagnostics:
        raise BackendRefused(diagnostics)


CANCELS = frozenset({"sdpa"})
"""Backends whose backward takes D = dO . O from the rounded output, so that dP - D cancels where values are large."""


def cancelling(graph: Graph, plans: list[SitePlan]) -> list[str]:
    """The sites with such a backend that read a stream which no norm ever bounded."""
    found: dict[str, None] = {}
    for plan in plans:
        node = graph.nodes[plan.site.partition(".")[0]]
        cross = any(name == plan.site and site.cross for name, site in node.sites())
        if cross and "memory" in node.edges.reads:
            node = graph.nodes[base(node.edges.reads["memory"])]
        if plan.chosen in CANCELS and _unbounded(node, cross):
            found[plan.site] = None
    return list(found)


def _unbounded(node: Node, after: bool) -> bool:
    """Whether a stack has a layer without norms, and for what comes `after` it no final norm."""
    names = ("self_attention", "ffn")
    bare = [
        layer.norm.kind == "none" or (layer.placement and not layer.placement.entry.norm_sites(layer.placement.options, names))
        for _, layer in layer_paths(layers_of(node.options), "")
    ]
    return any(bare) and not (after and node.options.final_norm.kind != "none")
