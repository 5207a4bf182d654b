"""The layers of a stack one by one, from its groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def depth(groups: Sequence[Mapping[str, Any]]) -> int:
    """The number of layers that a token passes through."""
    return sum(group["repeat"] * (depth(group["layers"]) if "layers" in group else 1) for group in groups)


def single_layers(
    groups: Sequence[Mapping[str, Any]], start: int = 0, times: int = 1, copies: int = 1, back: int = 0
) -> Iterator[dict[str, Any]]:
    """Each layer as a group of one, with `number`, and with `owner`, the layer whose weights it uses.

    Args:
        groups: the groups of `layers_data`, whose counts include all repetitions.
        start: the number of the first layer.
        times: how often a token passes through the groups.
        copies: how many sets of weights they have.
        back: how many layers before a layer the owner of its weights is.
    """
    for group in groups:
        repeat, layers = group["repeat"], depth((group,)) // group["repeat"]
        all_times, all_copies = times * repeat, copies * (1 if group["shared"] else repeat)
        for turn in range(repeat):
            number, behind = start + turn * layers, back + turn * layers * group["shared"]
            if "layers" in group:
                yield from single_layers(group["layers"], number, all_times, all_copies, behind)
            else:
                yield _layer(group, all_times, all_copies) | {"number": number, "owner": number - behind}
        start += repeat * layers


def _layer(group: Mapping[str, Any], times: int, copies: int) -> dict[str, Any]:
    parts = [
        {**part, "parameters": part["parameters"] // copies}
        | {name: part[name] // times for name in ("flops", "activation_elements")}
        for part in group["sublayers"]
    ]
    own = {name: group[name] // copies for name in ("parameters", "norms")}
    return {**group, **own, "repeat": 1, "shared": False, "sublayers": parts}
