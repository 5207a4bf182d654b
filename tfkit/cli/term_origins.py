"""Which value of a spec makes a feature of attention necessary that a backend refuses: `key_visible` comes from `pad_id`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import Diagnostic
from ..graph import Graph
from ..graph.model_graph import layers_of
from ..slots.layer import layer_paths
from ..slots.sublayer import AttentionSite
from ..spec.model import ModelSpec
from ..view.sites import SiteGroup

FIELDS = {
    "mask term window is not declared": "window", "dropout is not declared": "dropout", "softcap is not declared": "softcap",
    "fewer key/value heads than query heads are not declared": "num_kv_heads",
    "value dim [0-9]+ differs from head_dim [0-9]+": "value_dim",
    "score function [^ ]+ is not declared": "score",
}  # fmt: skip
"""The option of an attention sub-layer behind a reason of `check_request`, a regular expression."""
KEY_VISIBLE, CAUSAL = "mask term key_visible is not declared", "mask term causal is not declared"


def with_origins(
    diagnostics: Sequence[Diagnostic], spec: ModelSpec, graph: Graph, groups: Sequence[SiteGroup]
) -> list[Diagnostic]:
    """The refusals of backends for groups of sites; behind each reason, the value of the spec that it comes from, and where it
    is written."""
    named = {group.name: group for group in groups}
    return [replace(each, message=_explained(each.message, _origins(spec, graph, named[each.path]))) for each in diagnostics]


def _explained(message: str, origins: dict[str, str]) -> str:
    for reason, origin in origins.items():
        message = re.sub(rf"(?:(?<=: )|(?<=, )){reason}", partial(_with, origin), message)
    return message


def _with(origin: str, found: re.Match[str]) -> str:
    return f"{found[0]} ({origin})"


def _origins(spec: ModelSpec, graph: Graph, group: SiteGroup) -> dict[str, str]:
    """By reason, the value behind it. Reasons without a written value are left out."""
    name, _, rest = group.sites[0].partition(".")
    node, sublayer = graph.nodes[name], rest.partition(".")[2]
    paths = {CAUSAL: f"nodes.{name}.causal"}
    signals = node.context.signals
    read = [*node.context.memories.values()] if group.site.cross else []
    read += [signals[field] for field in ("memory" if group.site.cross else "input",) if field in signals]
    sources = {signal.tokens for signal in read if signal.tokens}
    if len(sources) == 1:  # with several memories, the site alone does not say which one it reads
        paths[KEY_VISIBLE] = f"nodes.{sources.pop()}.pad_id"
    for path, layer in layer_paths(layers_of(node.options), f"nodes.{name}.layers"):
        for number, part in enumerate(layer.sublayers or ()):
            if part.options.name == sublayer and _describes(part.options, group.site):
                for reason, field in FIELDS.items():
                    paths.setdefault(reason, f"{path}.sublayers.{number}.{field}")
    found = {reason: spec.origin_of(path) for reason, path in paths.items()}
    return {reason: f"from {origin}" for reason, origin in found.items() if origin}


def _describes(options: Any, site: AttentionSite) -> bool:
    """Whether these options of a sub-layer are those of the site: layers of one stack may differ."""
    same = (("num_heads", site.heads), ("dropout", site.dropout), ("softcap", site.softcap))
    return all(getattr(options, field, None) == value for field, value in same)
