"""The layer pattern of a stack as data, grouped as in the spec: `6 x (self_attention, ffn)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..graph import Node
from ..slots.layer import Layer, LayerRun, depth, leaves
from ..slots.options import Component
from ..slots.sublayer import AttentionSite
from .formatting import changed_options, in_words

IN_SITE = frozenset({"name", "num_heads", "num_kv_heads", "head_dim", "residual_scale"})


def layers_data(node: Node, sites: Mapping[str, AttentionSite]) -> list[dict[str, Any]]:
    """The groups of a stack. A group has `repeat`, `shared`, `parameters` and either `layers` (groups again) or `sublayers`
    (name, kind, summary, options, parameters), with the parameters of its `norms`. All counts include the repetition."""
    runs = leaves(node.options.layers)
    return _groups(node, node.options.layers, runs, parameters_by_path(node), sites, 0)


def parameters_by_path(node: Node) -> dict[str, int]:
    """Trainable parameters by path. Those of repeated layers are under the path of the first."""
    found: dict[str, int] = {}
    for group in node.parameter_groups():
        first = next(iter(group.prefixes()), None)
        for parameter in group.parameters if first is not None else ():
            path = f"{first}.{parameter.name}" if first else parameter.name
            found[path] = found.get(path, 0) + parameter.size * group.times * parameter.trainable
    return found


def _groups(
    node: Node, layers: tuple[Layer, ...], runs: Iterator[LayerRun], sizes: Mapping[str, int],
    sites: Mapping[str, AttentionSite], start: int,
) -> list[dict[str, Any]]:  # fmt: skip
    found = []
    for group in layers:
        data: dict[str, Any] = {"repeat": group.repeat, "shared": group.shared}
        if group.layers:
            inner = _groups(node, group.layers, runs, sizes, sites, start)
            data |= {"parameters": sum(item["parameters"] for item in inner), "layers": inner}
        else:
            data |= _leaf(node, next(runs), sizes, sites, start)
        found.append(data)
        start += depth((group,))
    return found


def _leaf(
    node: Node, run: LayerRun, sizes: Mapping[str, int], sites: Mapping[str, AttentionSite], start: int
) -> dict[str, Any]:
    layer, prefix = run.layer, f"layers.{run.start}."
    sublayers = []
    for part in layer.sublayers or ():
        name = part.options.name
        sublayers.append(
            {
                "name": name,
                "kind": part.kind,
                "summary": _summary(node, part, sites.get(f"{node.name}.{start}.{name}")),
                "options": part.options.model_dump(mode="json"),
                "parameters": _under(sizes, f"{prefix}branches.{name}."),
            }
        )
    own = {name: value for name in ("placement", "norm", "position") if (value := getattr(layer, name)) is not None}
    return {
        "parameters": _under(sizes, prefix),
        **{name: {"kind": value.kind, "options": value.options.model_dump(mode="json")} for name, value in own.items()},
        "dropout": layer.dropout,
        "summary": ", ".join(in_words(value) for name, value in own.items() if name != "position" or value.entry.acts),
        "norms": _under(sizes, f"{prefix}norms."),
        "sublayers": sublayers,
    }


def _under(sizes: Mapping[str, int], prefix: str) -> int:
    return sum(size for path, size in sizes.items() if path.startswith(prefix))


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
