"""Finds the spec value behind a refused attention feature: `key_visible` comes from `pad_id`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..attention.features import FEATURES
from ..errors import Diagnostic
from ..graph import Graph, Node
from ..graph.model_graph import layers_of
from ..slots.layer import layer_paths
from ..slots.sublayer import AttentionSite, settings_of
from ..spec.model import ModelSpec
from ..view.sites import SiteGroup

FIELDS = {
    "mask term window is not declared": "window",
    **{feature.reason: feature.option for feature in FEATURES if feature.option},
    "value dim [0-9]+ differs from head_dim [0-9]+": "value_dim",
    "score function [^ ]+ is not declared": "score",
}  # fmt: skip
"""The option of an attention sub-layer behind a reason of `check_request`, a regular expression."""
KEY_VISIBLE, CAUSAL = "mask term key_visible is not declared", "mask term causal is not declared"
VISIBLE = "mask term visible is not declared"
BIASES = ("[a-z]+ bias is not declared", "no gradient for a [a-z]+ bias")


def with_origins(
    diagnostics: Sequence[Diagnostic], spec: ModelSpec, graph: Graph, groups: Sequence[SiteGroup]
) -> list[Diagnostic]:
    """The refusals of backends for groups of sites; behind each reason, the value of the spec that it comes from, and where it
    is written."""
    named = {group.name: group for group in groups}
    return [
        replace(diagnostic, message=_explained(diagnostic.message, _origins(spec, graph, named[diagnostic.path])))
        for diagnostic in diagnostics
    ]


def _explained(message: str, origins: dict[str, str]) -> str:
    for reason, origin in origins.items():
        message = re.sub(rf"(?:(?<=: )|(?<=, )){reason}", partial(_with, origin), message)
    return message


def _with(origin: str, match: re.Match[str]) -> str:
    return f"{match[0]} ({origin})"


def _origins(spec: ModelSpec, graph: Graph, group: SiteGroup) -> dict[str, str]:
    """By reason, the value behind it. Reasons without a written value are left out."""
    name, _, rest = group.sites[0].partition(".")
    node, sublayer = graph.nodes[name], rest.partition(".")[2]
    paths = {CAUSAL: [f"nodes.{name}.causal"]}
    signals = node.context.signals
    read = [*node.context.memories.values()] if group.site.cross else []
    read += [signals[field] for field in ("memory" if group.site.cross else "input",) if field in signals]
    sources = {signal.tokens for signal in read if signal.tokens}
    if len(sources) == 1:  # with several memories, the site alone does not say which one it reads
        paths[KEY_VISIBLE] = [f"nodes.{sources.pop()}.pad_id"]
    for reasons, candidates in _written(node, f"nodes.{name}", sublayer, group.site):
        for reason in reasons:
            paths.setdefault(reason, candidates)
    origins = {reason: next(filter(None, map(spec.origin_of, option_paths)), "") for reason, option_paths in paths.items()}
    return {reason: f"from {origin}" for reason, origin in origins.items() if origin}


def _written(node: Node, path: str, sublayer: str, site: AttentionSite) -> Iterator[tuple[Sequence[str], list[str]]]:
    """Reasons, and the paths of the options that may be behind them, the nearest first: of a sub-layer of a stack, or of the
    attention of a recurrent decoder."""
    sublayer_options = getattr(node.options, sublayer, None)
    if sublayer_options is not None and not layers_of(node.options):
        yield from _of_options(sublayer_options, f"{path}.{sublayer}", [])
    for layer_path, layer in layer_paths(layers_of(node.options), f"{path}.layers"):
        for number, part in enumerate(layer.sublayers or ()):
            if part.options.name == sublayer and _describes(part.options, site):
                yield from _of_options(part.options, f"{layer_path}.sublayers.{number}", [layer_path, path])


def _of_options(options: Any, path: str, outer: Sequence[str]) -> Iterator[tuple[Sequence[str], list[str]]]:
    """A bias and the mask term `visible` come from an attention sink or local attention if there is one. Otherwise a bias comes
    from the position scheme: that of cross-attention is its own option, that of self-attention is an option of its layer."""
    for reason, field in FIELDS.items():
        yield [reason], [f"{path}.{field}"]
    biased = next((field for field in ("sink", "local") if getattr(options, field, None)), "")
    if biased:
        yield [VISIBLE, *BIASES], [f"{path}.{biased}"]
    else:
        has_position = "position" in type(options).model_fields
        yield BIASES, [f"{place}.position" for place in ([path] if has_position else outer)]


def _describes(options: Any, site: AttentionSite) -> bool:
    """Whether these options of a sub-layer are those of the site: layers of one stack may differ."""
    same = {"num_heads": site.heads, **settings_of(site)}
    return all(getattr(options, field, None) == value for field, value in same.items())
