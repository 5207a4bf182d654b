"""The layer pattern of a stack as data, grouped as in the spec: `6 x (self_attention, ffn)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..graph import Batch, Node
from ..graph.costs import layer_costs
from ..slots.layer import Layer, LayerRun, depth, leaves
from ..slots.options import Component
from ..slots.sublayer import AttentionSite
from .formatting import changed_options, in_words

IN_SITE = frozenset({"name", "num_heads", "num_kv_heads", "head_dim", "residual_scale"})


def layers_data(node: Node, batch: Batch, sites: Mapping[str, AttentionSite]) -> list[dict[str, Any]]:
    """The groups of a stack. A group has `repeat`, `shared`, `parameters` and either `layers` (groups again) or `sublayers`
    (name, kind, summary, options, memory, parameters, flops, activation_elements), with the parameters of its `norms`. All
    counts include the repetition."""
    runs = leaves(node.options.layers)
    return _Stack(node, batch, _by_module(parameters_by_path(node)), sites).groups(node.options.layers, runs, 0, 1)


def parameters_by_path(node: Node) -> dict[str, int]:
    """Trainable parameters by path. Those of repeated layers are under the path of the first."""
    found: dict[str, int] = {}
    for group in node.parameter_groups():
        first = next(iter(group.prefixes()), None)
        for parameter in group.parameters if first is not None else ():
            path = f"{first}.{parameter.name}" if first else parameter.name
            found[path] = found.get(path, 0) + parameter.size * group.times * parameter.trainable
    return found


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
        found = []
        for group in layers:
            data: dict[str, Any] = {"repeat": group.repeat, "shared": group.shared}
            total = times * group.repeat
            if group.layers:
                inner = self.groups(group.layers, runs, start, total)
                data |= {"parameters": sum(item["parameters"] for item in inner), "layers": inner}
            else:
                data |= self._leaf(next(runs), start, total)
            found.append(data)
            start += depth((group,))
        return found

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
        own = {name: value for name in ("placement", "norm", "position") if (value := getattr(layer, name)) is not None}
        return {
            "parameters": self.parameters[module],
            **{name: {"kind": value.kind, "options": value.options.model_dump(mode="json")} for name, value in own.items()},
            "dropout": layer.dropout,
            "summary": ", ".join(in_words(value) for name, value in own.items() if name != "position" or value.entry.acts),
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
