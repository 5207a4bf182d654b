"""Mutants of the position schemes that act on scores: ALiBi, T5's buckets, Shaw's vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import DenseBias, DistanceBias, LinearBias
from tfkit.plugin.model_parts import PositionRange

from .mutant import Built, Change, declares, law_mutants, overriding


def _slopes(change: Callable[[Tensor], Tensor]) -> Change:
    """Changes the slopes (H,)."""
    return overriding("prepare", lambda built, span: change(built.own(span)))


def _closed(slopes: Tensor) -> Tensor:
    heads = slopes.shape[0]
    return torch.exp2(-8.0 * torch.arange(1, heads + 1, device=slopes.device) / heads)


def _next_power(slopes: Tensor) -> Tensor:
    heads = slopes.shape[0]
    power = 1 << (heads - 1).bit_length()
    return torch.exp2(-8.0 * torch.arange(1, heads + 1, device=slopes.device) / power)


def _buckets(change: Callable[[Tensor, Tensor, Built], Tensor]) -> Change:
    """Changes the buckets of the distances from -max_distance up: `change(buckets, distances, built)`."""

    def prepare(built: Built, span: PositionRange) -> Tensor:
        buckets = built.own(span)
        return change(buckets, torch.arange(len(buckets), device=buckets.device) - built.options.max_distance, built)

    return overriding("prepare", prepare)


def _buckets_per_side(built: Built) -> int:
    return int(built.options.buckets if built.site.causal else built.options.buckets // 2)


def _late(buckets: Tensor, distances: Tensor, built: Built) -> Tensor:
    """The first wide bucket starts one distance too late."""
    return torch.where(distances.abs() == _buckets_per_side(built) // 2, buckets - 1, buckets)


def _sides(buckets: Tensor, distances: Tensor, built: Built) -> Tensor:
    count = built.options.buckets
    return buckets if built.site.causal else torch.where(distances == 0, buckets, (buckets + count // 2) % count)


def _never_last(buckets: Tensor, distances: Tensor, built: Built) -> Tensor:
    count = _buckets_per_side(built)
    return torch.where(buckets % count == count - 1, buckets - 1, buckets)


def _bias(change: Callable[..., Any]) -> Change:
    """Changes the bias: `change(bias, query, scale)`."""
    return overriding("bias", lambda built, query, tables, scale: change(built.own(query, tables, scale), query, scale))


def _rows(change: Callable[[Tensor, PositionRange, int], Tensor]) -> Change:
    """Makes Shaw's rows of the table (Q, K) from changed distances: `change(distances, span, max_distance)`."""

    def prepare(built: Built, span: PositionRange) -> Tensor:
        farthest = built.options.max_distance
        distances = torch.arange(span.keys, device=span.device) - span.query_positions().unsqueeze(1)
        rows: Tensor = change(distances, span, farthest).clamp(-farthest, farthest) + farthest
        return rows

    return overriding("prepare", prepare)


def _of_first_row(built: Built, query: Tensor, tables: Tensor, scale: float) -> DenseBias:
    return DenseBias(built.own(query[:1].expand_as(query), tables, scale).values)


MUTANTS = law_mutants(
    "position",
    alibi=[
        ("alibi_closed_form", "2^(-8h/H) also where H is no power of two", _slopes(_closed)),
        ("alibi_next_power", "the slopes of the next larger power of two, cut off", _slopes(_next_power)),
        ("alibi_sign", "far keys are preferred", _slopes(lambda slopes: -slopes)),
        ("alibi_order", "the heads are in the opposite order", _slopes(lambda slopes: slopes.flip(0))),
        ("alibi_equal", "two heads share a slope", _slopes(lambda slopes: torch.cat((slopes[:1], slopes[:-1])))),
        (
            "alibi_dtype",
            "slopes are rounded to bfloat16",
            overriding("bias", lambda built, query, tables, scale: LinearBias(tables.to(torch.bfloat16))),
        ),
        ("alibi_kind", "it declares a dense bias and gives a linear one", declares(bias_kinds=frozenset({"dense"}))),
    ],
    relative_t5=[
        ("t5_boundary", "the first wide bucket starts one distance too late", _buckets(_late)),
        ("t5_sides", "keys before the query have the buckets of those after it", _buckets(_sides)),
        ("t5_last", "the last bucket of a side is never used", _buckets(_never_last)),
        (
            "t5_mirrored",
            "distances count from the key to the query",
            _buckets(lambda buckets, distances, built: buckets.flip(0)),
        ),
        ("t5_low", "all distances are off by one", _bias(lambda bias, query, scale: DistanceBias(bias.values, bias.low + 1))),
        (
            "t5_detached",
            "the table gets no gradient",
            _bias(lambda bias, query, scale: DistanceBias(bias.values.detach(), bias.low)),
        ),
        (
            "t5_scaled",
            "the bias is multiplied by the scale of the scores",
            _bias(lambda bias, query, scale: DistanceBias(bias.values * scale, bias.low)),
        ),
        ("t5_tables", "its entry says that it has no table", declares(tables=lambda options: "none")),
    ],
    relative_shaw=[
        ("shaw_sign", "distances count from the key to the query", _rows(lambda distance, span, far: -distance)),
        (
            "shaw_clip",
            "distances are clipped one too early",
            _rows(lambda distance, span, far: distance.clamp(1 - far, far - 1)),
            {"max_distance": 3},
        ),
        (
            "shaw_offset",
            "every call starts at position 0, whatever its offset",
            _rows(lambda distance, span, far: distance + span.offset),
        ),
        (
            "shaw_end",
            "queries are taken to end where the keys end, off by one",
            _rows(lambda distance, span, far: distance + 1),
        ),
        (
            "shaw_unscaled",
            "the scale is left out",
            overriding("bias", lambda built, query, tables, scale: built.own(query, tables, 1.0)),
        ),
        (
            "shaw_rounded",
            "the bias is rounded to bfloat16",
            _bias(lambda bias, query, scale: DenseBias(bias.values.bfloat16().to(query.dtype))),
        ),
        ("shaw_first_row", "all batch rows get the bias of the first", overriding("bias", _of_first_row)),
        ("shaw_reads_query", "its entry says that the bias does not read the query", declares(reads_query=False)),
        ("shaw_flops", "its entry counts no operations", declares(flops=lambda options, site, batch, queries, keys: 0)),
    ],
)
