"""The backend of each attention site on a device, with the reasons of every refusal. The machine need not have the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..attention.auto_table import AutoRow
from ..attention.backend import AttentionBackend, Verdict
from ..attention.capabilities import AttentionRequest
from ..attention.features import FEATURES
from ..attention.selection import auto_row, faster_elsewhere, ranked, refusal
from ..catalogue import Catalogue
from ..errors import Diagnostic
from ..slots.layer import layer_paths
from ..slots.options import Component
from ..slots.sublayer import AttentionSite
from .model_graph import Graph, Node, base, layers_of


@dataclass(frozen=True)
class Target:
    """Where and how the model will run.

    Args:
        device: `cpu` or `cuda`; None: not known yet.
        cuda_capability: the compute capability of a CUDA device, (9, 0) for sm90.
        dtype: name of the dtype of weights and activations; None: not known yet.
        training: whether gradients and dropout are needed.
        compiled: whether the model runs under torch.compile.
        queries: number of queries Q; None: not known.
        keys: number of keys K; None: not known.
    """

    device: str | None = "cpu"
    cuda_capability: tuple[int, int] | None = None
    dtype: str | None = "float32"
    training: bool = True
    compiled: bool = False
    queries: int | None = None
    keys: int | None = None


@dataclass(frozen=True)
class CandidateVerdict:
    """The verdict on one candidate backend at one site, and its rows in the table of `auto`: one for each class of lengths
    that the plan covers, or none."""

    backend: str
    verdict: Verdict
    rows: tuple[AutoRow, ...] = ()

    @property
    def relative_time(self) -> float | None:
        """Its time at the longest lengths, relative to eager."""
        return self.rows[-1].relative_time if self.rows else None


@dataclass(frozen=True)
class SitePlan:
    """The plan of one site.

    Args:
        site: its name, `encoder.3.self_attention`.
        requested: the requested backends, as text.
        chosen: the backend that will be used; None if no candidate can serve the site.
        candidates: all candidates in the order in which they are tried.
        lengths: the class of max(Q, K) that the plan covers, (lowest, highest or None); None: any lengths.
        not_installed: distributions with a backend that was measured to be faster, how many times, where `auto` chooses.
    """

    site: str
    requested: str
    chosen: str | None
    candidates: tuple[CandidateVerdict, ...]
    lengths: tuple[int, int | None] | None = None
    not_installed: Mapping[str, float] = field(default_factory=dict)


def candidates_for(requested: tuple[Component, ...], catalogue: Catalogue) -> tuple[list[tuple[AttentionBackend, Any]], bool]:
    """The backends that a request allows, with their options, and whether `auto` orders them."""
    if any(part.kind == "auto" for part in requested):
        return [(entry, options) for entry, options in catalogue.ready("backend") if entry.auto], True
    return [(part.entry, part.options) for part in requested], False


def request_for(site: AttentionSite, target: Target) -> AttentionRequest:
    """The requirements of a site on a target.

    Args:
        site: the attention site.
        target: where and how the model will run.

    Returns:
        The request that a backend must accept to serve the site.
    """
    if not target.training:
        site = replace(site, bias_gradient=False, dropout=0.0)
    features: dict[str, Any] = {feature.name: True for feature in FEATURES if feature.in_site(site)}
    return AttentionRequest(
        device=target.device,
        cuda_capability=target.cuda_capability,
        dtype=target.dtype,
        head_dim=site.head_dim,
        value_dim=site.value_dim or site.head_dim,
        queries=target.queries,
        keys=target.keys,
        mask_terms=site.mask_terms,
        bias=site.bias,
        bias_gradient=site.bias_gradient,
        score=site.score,
        gradients=target.training,
        compiled=target.compiled,
        **features,
    )


def plan_sites(sites: Iterable[tuple[str, AttentionSite]], catalogue: Catalogue, target: Target) -> Iterator[list[SitePlan]]:
    """The plans of each named site. Sites with one request and the same backends have the same plan, which is made once."""
    known: dict[Any, list[SitePlan]] = {}
    for name, site in sites:
        key = request_for(site, target), tuple((part.kind, repr(part.options)) for part in site.backend)
        if key not in known:
            known[key] = plan_site(name, site, catalogue, target)
        yield [replace(plan, site=name) for plan in known[key]]


def plan_site(name: str, site: AttentionSite, catalogue: Catalogue, target: Target) -> list[SitePlan]:
    """One plan, or one for each class of lengths if `auto` chooses by length."""
    candidates, automatic = candidates_for(site.backend, catalogue)
    requested = "auto" if automatic else ", ".join(part.kind for part in site.backend)
    if automatic and target.queries is None:
        plans = [
            _planned(name, requested, site, candidates, True, _at(target, low), (low, high))
            for low, high in _classes(candidates, target.device)
        ]
        merged: list[SitePlan] = []
        for plan in plans:
            if merged and merged[-1].chosen == plan.chosen and merged[-1].lengths and plan.lengths:
                plan = _joined(merged.pop(), plan)
            merged.append(plan)
        return merged
    return [_planned(name, requested, site, candidates, automatic, target, None)]


def _joined(shorter: SitePlan, longer: SitePlan) -> SitePlan:
    """Join the plans of two adjacent classes of lengths with the same choice."""
    earlier = {candidate.backend: candidate.rows for candidate in shorter.candidates}
    candidates = tuple(
        replace(
            candidate,
            rows=(*earlier[candidate.backend], *(row for row in candidate.rows if row not in earlier[candidate.backend])),
        )
        for candidate in longer.candidates
    )
    assert shorter.lengths is not None
    assert longer.lengths is not None
    names = {**shorter.not_installed, **longer.not_installed}
    most = {name: max(plan.not_installed.get(name, 0.0) for plan in (shorter, longer)) for name in names}
    return replace(longer, candidates=candidates, lengths=(shorter.lengths[0], longer.lengths[1]), not_installed=most)


def _classes(candidates: list[tuple[AttentionBackend, Any]], device: str | None) -> list[tuple[int, int | None]]:
    rows = [row for entry, _ in candidates for row in entry.auto if device in (None, row.device)]
    ends = sorted({row.lengths[1] for row in rows if row.lengths[1]})
    starts = [1, *(end + 1 for end in ends)]
    return list(zip(starts, [*ends, None], strict=True))


def _at(target: Target, length: int) -> Target:
    """The target at a length of its class. At least two queries, because one query is decoding, a class of its own."""
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
    verdicts = tuple(_verdict(candidates[index][0], verdict, request) for index, verdict in order)
    chosen = next((candidate for candidate in verdicts if candidate.verdict.accepted), None)
    faster = faster_elsewhere(request, chosen.relative_time, candidates) if automatic and chosen is not None else {}
    return SitePlan(name, requested, None if chosen is None else chosen.backend, verdicts, lengths, faster)


def _verdict(backend: AttentionBackend, verdict: Verdict, request: AttentionRequest) -> CandidateVerdict:
    row = auto_row(backend, request)
    return CandidateVerdict(backend.name, verdict, () if row is None else (row,))


def plan(graph: Graph, catalogue: Catalogue, target: Target) -> list[SitePlan]:
    """Plan the attention backends of a model, without torch.

    Args:
        graph: the resolved model.
        catalogue: the installed backends.
        target: where and how the model will run.

    Returns:
        One plan per site, or one per class of lengths if `auto` chooses by length.
    """
    return [plan for plans in plan_sites(graph.sites(), catalogue, target) for plan in plans]


def refusals(sites: Iterable[tuple[str, AttentionSite]], catalogue: Catalogue, target: Target) -> list[Diagnostic]:
    """An error for each of these named sites that no requested backend can serve on this target."""
    others = catalogue.ready("backend")
    diagnostics = []
    for name, site in sites:
        candidates, automatic = candidates_for(site.backend, catalogue)
        request = request_for(site, target)
        order = ranked(candidates, request, automatic)
        if not any(verdict.accepted for _, verdict in order):
            requested = "auto" if automatic else ", ".join(part.kind for part in site.backend)
            diagnostics.append(refusal(name, requested, order, candidates, request, others))
    return diagnostics


CANCELS = frozenset({"sdpa"})
"""Backends whose backward computes D = dO . O from the rounded output. If values are large, dP - D cancels."""


def cancelling(graph: Graph, plans: list[SitePlan]) -> list[str]:
    """The sites with a backend of `CANCELS` whose input no norm bounds. Their gradients may be lost to rounding."""
    sites: dict[str, None] = {}
    for plan in plans:
        node = graph.nodes[plan.site.partition(".")[0]]
        cross = any(name == plan.site and site.cross for name, site in node.sites())
        if cross and "memory" in node.edges.reads:
            node = graph.nodes[base(node.edges.reads["memory"])]
        if plan.chosen in CANCELS and _unbounded(node, cross):
            sites[plan.site] = None
    return list(sites)


def _unbounded(node: Node, after: bool) -> bool:
    """Whether a stack has a layer without norms. For what comes `after` the stack, a final norm bounds it."""
    names = ("self_attention", "ffn")
    bare = [
        layer.norm.kind == "none" or (layer.placement and not layer.placement.entry.norm_sites(layer.placement.options, names))
        for _, layer in layer_paths(layers_of(node.options), "")
    ]
    return any(bare) and not (after and node.options.final_norm.kind != "none")
