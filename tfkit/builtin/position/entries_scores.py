"""The entries of position schemes that act on attention scores: functions of the distance from query to key."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from pydantic import Field

from ...plugin import NoOptions, OneOf, Options, Parameter, PositionScheme
from ...slots.position import PositionSite

SCORES: frozenset[Literal["scores"]] = frozenset({"scores"})
TABLES = "whether the layers of a stack share one table (`stack`) or each has its own (`layer`)"
Distance = Annotated[int, Field(ge=1, le=2**20)]


class RelativeT5Options(Options):
    """Options of `relative_t5`."""

    buckets: Annotated[int, Field(ge=2, le=2**20, description="how many groups of distances have a value of their own")] = 32
    max_distance: Annotated[Distance, Field(description="distances from here on share the last group")] = 128
    tables: Annotated[str, OneOf("stack", "layer"), Field(description=TABLES)] = "stack"


class RelativeShawOptions(Options):
    """Options of `relative_shaw`."""

    max_distance: Annotated[Distance, Field(description="distances beyond this one count as this one")] = 16
    tables: Annotated[str, OneOf("stack", "layer"), Field(description=TABLES)] = "layer"


def tables(options: RelativeT5Options | RelativeShawOptions) -> Literal["none", "stack", "layer"]:
    return cast(Literal["stack", "layer"], options.tables)


def t5_parameters(options: RelativeT5Options, site: PositionSite) -> tuple[Parameter, ...]:
    return (Parameter("table", "relative_table", (options.buckets, site.heads)),)


def t5_exact(options: RelativeT5Options, causal: bool) -> int:
    """The number of distances of one direction, from 0 up, that have a bucket of their own."""
    return (options.buckets if causal else options.buckets // 2) // 2


def t5_unsupported(options: RelativeT5Options, site: PositionSite) -> tuple[str, ...]:
    reasons = []
    exact = t5_exact(options, site.causal)
    if not site.causal and options.buckets % 2:
        reasons.append(f"half of the buckets are for keys after the query, and `buckets` {options.buckets} is odd")
    if exact < 1:
        reasons.append(f"`buckets` {options.buckets} is too few where keys on both sides are seen; 4 is the least")
    if options.max_distance <= exact:
        reasons.append(
            f"`max_distance` {options.max_distance} must be more than the {exact} distances with a bucket of their own"
        )
    return tuple(reasons)


def shaw_parameters(options: RelativeShawOptions, site: PositionSite) -> tuple[Parameter, ...]:
    return (Parameter("table", "relative_table", (2 * options.max_distance + 1, site.head_dim)),)


def shaw_flops(options: RelativeShawOptions, site: PositionSite, batch: int, queries: int, keys: int) -> int:
    return 2 * batch * site.heads * queries * site.head_dim * (2 * options.max_distance + 1)


ENTRIES: list[PositionScheme] = [
    PositionScheme(
        name="alibi",
        summary="a penalty linear in the distance, with one fixed slope per head",
        reference="https://arxiv.org/abs/2108.12409",
        options=NoOptions,
        acts=SCORES,
        bias_kinds=frozenset({"linear"}),
        build="tfkit.builtin.position.alibi:build",
        source="tfkit.builtin.position:alibi.py.jinja",
    ),
    PositionScheme(
        name="relative_t5",
        summary="one learned value per head and group of distances, groups growing with the distance",
        reference="https://arxiv.org/abs/1910.10683",
        options=RelativeT5Options,
        acts=SCORES,
        tables=tables,
        parameters=t5_parameters,
        unsupported=t5_unsupported,
        bias_kinds=frozenset({"distance"}),
        build="tfkit.builtin.position.relative_t5:build",
        source="tfkit.builtin.position:relative_t5.py.jinja",
    ),
    PositionScheme(
        name="relative_shaw",
        summary="one learned vector per clipped distance, added to the key; Shaw's value term is not part of attention here",
        reference="https://arxiv.org/abs/1803.02155",
        options=RelativeShawOptions,
        acts=SCORES,
        tables=tables,
        parameters=shaw_parameters,
        flops=shaw_flops,
        bias_kinds=frozenset({"dense"}),
        reads_query=True,
        build="tfkit.builtin.position.relative_shaw:build",
        source="tfkit.builtin.position:relative_shaw.py.jinja",
    ),
]
