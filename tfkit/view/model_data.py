"""The data that `tfkit show --json` prints.

name, reference, description
parameters, frozen_parameters      whole numbers; `parameters` are the trainable ones
outputs                            names of nodes, and ports of nodes (`encoder.layers`)
batch                              size and input lengths of the batch for the costs
flops, activation_elements         of one forward pass; values kept for the backward pass
nodes                              name, kind, shape (axes as text, widths as numbers), parameters, frozen_parameters,
                                   reads (by field), shares (the node whose table is used, or null), summary, options,
                                   flops, activation_elements, costs (term, flops, activation_elements), layers (of a stack,
                                   see `layers_data`), other_parameters (of a stack, outside its layers)
sites                              name, heads, kv_heads, head_dim, cross, mask_terms, bias, score, softcap, dropout, backend
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..graph import Batch, Graph, Node, node_costs
from ..slots.cost import Cost
from ..slots.options import Component
from ..slots.sublayer import AttentionSite, settings_of
from ..spec import ModelSpec
from .formatting import changed_options
from .layers_data import layers_data, parameters_by_path
from .sites import all_sites


def model_data(
    spec: ModelSpec | None, graph: Graph, batch: Batch, requested: tuple[Component, ...] | None = None
) -> dict[str, Any]:
    """All data about a model that need no torch, for one batch. `requested` replaces the backends of the spec."""
    costs = node_costs(graph, batch)
    sites = all_sites(graph, requested)
    nodes = [_node(node, costs[name], batch, sites) for name, node in graph.nodes.items()]
    return {
        "name": graph.name,
        "reference": (spec and spec.reference) or None,
        "description": (spec and spec.description) or None,
        "parameters": graph.parameters(),
        "frozen_parameters": graph.parameters(trainable=False),
        "outputs": list(graph.outputs),
        "batch": {"size": batch.size, "lengths": dict(batch.lengths)},
        "flops": sum(node["flops"] for node in nodes),
        "activation_elements": sum(node["activation_elements"] for node in nodes),
        "nodes": nodes,
        "sites": [site_data(name, site) for name, site in sites.items()],
    }


def _node(node: Node, costs: tuple[Cost, ...], batch: Batch, sites: Mapping[str, AttentionSite]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": node.name,
        "kind": node.part.kind,
        "shape": list(node.signal.axes),
        "parameters": node.count(),
        "frozen_parameters": node.count(trainable=False),
        "reads": {**node.edges.reads, **{f"memory {ref}": ref for ref in node.edges.memories}},
        "shares": node.edges.owner,
        "summary": changed_options(node.options, frozenset({"d_model"})),
        "options": node.options.model_dump(mode="json", exclude={"layers"}),
        "flops": sum(cost.flops for cost in costs),
        "activation_elements": sum(cost.elements for cost in costs),
        "costs": [{"term": cost.term, "flops": cost.flops, "activation_elements": cost.elements} for cost in costs],
    }
    if getattr(node.options, "layers", None):
        other: dict[str, int] = {}
        for path, size in parameters_by_path(node).items():
            if not path.startswith("layers."):
                other[path.split(".")[0]] = other.get(path.split(".")[0], 0) + size
        data |= {"layers": layers_data(node, batch, sites), "other_parameters": other}
    return data


def site_data(name: str, site: AttentionSite) -> dict[str, Any]:
    """One attention site; `backend` lists the requested backends in order of preference."""
    return {
        "name": name,
        "heads": site.heads,
        "kv_heads": site.kv_heads,
        "head_dim": site.head_dim,
        "cross": site.cross,
        "mask_terms": sorted(site.mask_terms),
        "bias": site.bias,
        "score": site.score,
        **settings_of(site),
        "backend": [part.kind for part in site.backend],
    }
