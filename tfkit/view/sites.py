"""Groups of attention sites: equal sites of a stack become one row, `encoder.0-5.self_attention`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from ..errors import BuildError, Diagnostic
from ..graph import Graph
from ..slots.options import Component
from ..slots.sublayer import AttentionSite
from .formatting import ranges

MOST_SITES = 20_000
"""The largest number of sites that are listed."""


@dataclass(frozen=True)
class SiteGroup:
    """Equal sites under one name."""

    name: str
    sites: tuple[str, ...]
    site: AttentionSite


def all_sites(graph: Graph, backend: tuple[Component, ...] | None = None) -> dict[str, AttentionSite]:
    """Every site by name, with `backend` as its requested backends if given. Raises BuildError if there are too many."""
    sites = dict(islice(graph.sites(), MOST_SITES + 1))
    if len(sites) > MOST_SITES:
        raise BuildError(Diagnostic("TFK045", f"there are more than {MOST_SITES:,} attention sites", "make num_layers smaller"))
    return sites if backend is None else {name: replace(site, backend=backend) for name, site in sites.items()}


def fold(sites: Iterable[tuple[str, AttentionSite]]) -> list[SiteGroup]:
    """Groups in the order of their first sites: same stack, same sub-layer, same request."""
    groups: dict[tuple[str, str, AttentionSite], tuple[list[int], list[str]]] = {}
    for name, site in sites:
        node, index, rest = _pieces(name)
        numbers, names = groups.setdefault((node, rest, site), ([], []))
        numbers.append(index)
        names.append(name)
    return [
        SiteGroup(f"{node}.{ranges(numbers)}.{rest}" if rest else names[0], tuple(names), site)
        for (node, rest, site), (numbers, names) in groups.items()
    ]


def _pieces(name: str) -> tuple[str, int, str]:
    """`encoder`, 3 and `self_attention` for `encoder.3.self_attention`; any other name is a group of its own."""
    node, _, below = name.partition(".")
    index, _, rest = below.partition(".")
    return (node, int(index), rest) if index.isdecimal() and rest else (name, 0, "")
