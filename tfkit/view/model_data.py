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

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..graph import Batch, Graph, Node, node_costs
from ..graph.costs import layer_costs
from ..slots.cost import Cost
from ..slots.layer import Layer, LayerRun, depth, leaves
from ..slots.options import Component
from ..slots.sublayer import AttentionSite, settings_of
from ..spec import ModelSpec
from .formatting import changed_options, in_words
from .sites import all_sites

IN_SITE = frozenset({"name", "num_heads", "num_kv_heads", "head_dim", "residual_scale"})


def layers_data(node: Node, batch: Batch, sites: Mapping[str, AttentionSite]) -> list[dict[str, Any]]:
    """The groups of a stack. A group has `repeat`, `shared`, `parameters` and either `layers` (groups again) or `sublayers`
    (name, kind, summary, options, memory, parameters, flops, activation_elements), with the parameters of its `norms`. All
    counts include the repetition."""
    runs = leaves(node.options.layers)
    return _Stack(node, batch, _by_module(parameters_by_path(node)), sites).groups(node.options.layers, runs, 0, 1)


def parameters_by_path(node: Node) -> dict[str, int]:
    """Trainable parameters by path. Those of repeated layers are under the path of the first."""
    counts: dict[str, int] = {}
    for group in node.parameter_groups:
        first = next(iter(group.prefixes()), None)
        for parameter in group.parameters if first is not None else ():
            path = f"{first}.{parameter.name}" if first else parameter.name
            counts[path] = counts.get(path, 0) + parameter.size * group.times * parameter.trainable
    return counts


def _by_module(sizes: Mapping[str, int]) -> Counter[str]:
    """The parameters of every module, by its path; 0 for a path without any."""
    modules: Counter[str] = Counter()
    for path, size in sizes.items():
        names = path.split(".")
        for end in range(1, len(names)):
            modules[".".join(names[:end])] += size
    return modules


@dataclass(frozen=True)
class _Stack:
    node: Node
    batch: Batch
    parameters: Counter[str]
    sites: Mapping[str, AttentionSite]

    def groups(self, layers: tuple[Layer, ...], runs: Iterator[LayerRun], start: int, times: int) -> list[dict[str, Any]]:
        """The groups from layer `start` on; a token passes through each `times` its repetitions."""
        rows = []
        for group in layers:
            data: dict[str, Any] = {"repeat": group.repeat, "shared": group.shared}
            total = times * group.repeat
            if group.layers:
                inner = self.groups(group.layers, runs, start, total)
                data |= {"parameters": sum(item["parameters"] for item in inner), "layers": inner}
            else:
                data |= self._leaf(next(runs), start, total)
            rows.append(data)
            start += depth((group,))
        return rows

    def _leaf(self, run: LayerRun, start: int, times: int) -> dict[str, Any]:
        layer, module = run.layer, f"layers.{run.start}"
        sublayers = []
        for part in layer.sublayers or ():
            name = part.options.name
            alone = layer.model_copy(update={"repeat": times, "shared": False, "sublayers": (part,)})
            costs = layer_costs(self.node, (alone,), self.batch)
            sublayers.append(
                {
                    "name": name,
                    "kind": part.kind,
                    "summary": _summary(self.node, part, self.sites.get(f"{self.node.name}.{start}.{name}")),
                    "options": part.options.model_dump(mode="json"),
                    "memory": memory_of(self.node, part) if part.entry.reads == "memory" else None,
                    "parameters": self.parameters[f"{module}.branches.{name}"],
                    "flops": sum(cost.flops for cost in costs),
                    "activation_elements": sum(cost.elements for cost in costs),
                }
            )
        parts = {name: value for name in ("placement", "norm", "position") if (value := getattr(layer, name)) is not None}
        return {
            "parameters": self.parameters[module],
            **{name: {"kind": value.kind, "options": value.options.model_dump(mode="json")} for name, value in parts.items()},
            "dropout": layer.dropout,
            "summary": ", ".join(in_words(value) for name, value in parts.items() if name != "position" or value.entry.acts),
            "norms": self.parameters[f"{module}.norms"],
            "sublayers": sublayers,
        }


def _summary(node: Node, part: Component, site: AttentionSite | None) -> str:
    """`8 heads of 64, reads encoder`, or its changed options."""
    words = []
    if site is not None:
        words.append(f"{site.heads} heads of {site.head_dim}")
        if site.kv_heads != site.heads:
            words.append(f"{site.kv_heads} key/value heads")
    if part.entry.reads == "memory":
        words.append(f"reads {memory_of(node, part)}")
    more = changed_options(part.options, IN_SITE if site is not None else frozenset({"name"}))
    return ", ".join([*words, *([more] if more else [])])


def memory_of(node: Node, part: Component) -> str:
    """The node that a sub-layer reads as memory: the one it names, or the stack's."""
    named = [value for name, value in part.options if name == "memory" and value is not None]
    return str(named[0] if named else node.edges.reads.get("memory", "nothing"))


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
