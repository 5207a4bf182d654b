"""Mutants of the position schemes that act on scores: ALiBi, T5's buckets, Shaw's vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.attention.positions import PositionRange
from tfkit.attention.types import DenseBias, DistanceBias, LinearBias

from .mutant import Change, declares, law_mutants, method, patched


def _slopes(spoil: Callable[[Tensor], Tensor]) -> Change:
    """The slopes (H,), spoilt."""

    def patch(module: nn.Module, options: Any, site: Any) -> None:
        own: Any = module.prepare
        method(module, "prepare", lambda span: spoil(own(span)))

    return patched(patch)


def _closed(slopes: Tensor) -> Tensor:
    heads = slopes.shape[0]
    return torch.exp2(-8.0 * torch.arange(1, heads + 1, device=slopes.device) / heads)


def _next_power(slopes: Tensor) -> Tensor:
    heads = slopes.shape[0]
    power = 1 << (heads - 1).bit_length()
    return torch.exp2(-8.0 * torch.arange(1, heads + 1, device=slopes.device) / power)


def _alibi_dtype(module: nn.Module, options: Any, site: Any) -> None:
    method(module, "bias", lambda query, tables, scale: LinearBias(tables.to(torch.bfloat16)))


def _buckets(spoil: Callable[[Tensor, Tensor, Any, Any], Tensor]) -> Change:
    """The bucket of every distance from -max_distance up: `spoil(buckets, distances, options, site)`."""

    def patch(module: nn.Module, options: Any, site: Any) -> None:
        own: Any = module.prepare

        def prepare(span: PositionRange) -> Tensor:
            found = own(span)
            distances = torch.arange(len(found), device=found.device) - options.max_distance
            return spoil(found, distances, options, site)

        method(module, "prepare", prepare)

    return patched(patch)


def _side(options: Any, site: Any) -> int:
    return int(options.buckets if site.causal else options.buckets // 2)


def _early(found: Tensor, distances: Tensor, options: Any, site: Any) -> Tensor:
    """The first wide bucket starts one distance too late."""
    exact = _side(options, site) // 2
    return torch.where(distances.abs() == exact, found - 1, found)


def _sides(found: Tensor, distances: Tensor, options: Any, site: Any) -> Tensor:
    half = options.buckets // 2
    return found if site.causal else torch.where(distances == 0, found, (found + half) % options.buckets)


def _never_last(found: Tensor, distances: Tensor, options: Any, site: Any) -> Tensor:
    last = _side(options, site) - 1
    return torch.where(found % _side(options, site) == last, found - 1, found)


def _t5_low(module: nn.Module, options: Any, site: Any) -> None:
    own: Any = module.bias

    def bias(query: Tensor, tables: Tensor, scale: float) -> DistanceBias:
        made = own(query, tables, scale)
        return DistanceBias(made.values, made.low + 1)

    method(module, "bias", bias)


def _detached(module: nn.Module, options: Any, site: Any) -> None:
    own: Any = module.bias

    def bias(query: Tensor, tables: Tensor, scale: float) -> Any:
        made = own(query, tables, scale)
        return DistanceBias(made.values.detach(), made.low)

    method(module, "bias", bias)


def _t5_scaled(module: nn.Module, options: Any, site: Any) -> None:
    own: Any = module.bias

    def bias(query: Tensor, tables: Tensor, scale: float) -> Any:
        made = own(query, tables, scale)
        return DistanceBias(made.values * scale, made.low)

    method(module, "bias", bias)


def _rows(spoil: Callable[[Tensor, PositionRange, int], Tensor]) -> Change:
    """Shaw's rows of the table (Q, K), made anew from distances (Q, K): `spoil(distances, span, max_distance)`."""

    def patch(module: nn.Module, options: Any, site: Any) -> None:
        farthest = options.max_distance

        def prepare(span: PositionRange) -> Tensor:
            distances = torch.arange(span.keys, device=span.device) - span.query_positions().unsqueeze(1)
            rows: Tensor = spoil(distances, span, farthest).clamp(-farthest, farthest) + farthest
            return rows

        method(module, "prepare", prepare)

    return patched(patch)


def _shaw_unscaled(module: nn.Module, options: Any, site: Any) -> None:
    own: Any = module.bias
    method(module, "bias", lambda query, tables, scale: own(query, tables, 1.0))


def _shaw_rounded(module: nn.Module, options: Any, site: Any) -> None:
    own: Any = module.bias
    method(module, "bias", lambda query, tables, scale: DenseBias(own(query, tables, scale).values.bfloat16().to(query.dtype)))


def _first_row(module: nn.Module, options: Any, site: Any) -> None:
    own: Any = module.bias

    def bias(query: Tensor, tables: Tensor, scale: float) -> DenseBias:
        return DenseBias(own(query[:1].expand_as(query), tables, scale).values)

    method(module, "bias", bias)


MUTANTS = law_mutants(
    "position",
    alibi=[
        ("alibi_closed_form", "2^(-8h/H) also where H is no power of two", _slopes(_closed)),
        ("alibi_next_power", "the slopes of the next larger power of two, cut off", _slopes(_next_power)),
        ("alibi_sign", "far keys are preferred", _slopes(lambda slopes: -slopes)),
        ("alibi_order", "the heads are in the opposite order", _slopes(lambda slopes: slopes.flip(0))),
        ("alibi_equal", "two heads share a slope", _slopes(lambda slopes: torch.cat((slopes[:1], slopes[:-1])))),
        ("alibi_dtype", "slopes are rounded to bfloat16", patched(_alibi_dtype)),
        ("alibi_kind", "it declares a dense bias and gives a linear one", declares(bias_kinds=frozenset({"dense"}))),
    ],
    relative_t5=[
        ("t5_boundary", "the first wide bucket starts one distance too late", _buckets(_early)),
        ("t5_sides", "keys before the query have the buckets of those after it", _buckets(_sides)),
        ("t5_last", "the last bucket of a side is never used", _buckets(_never_last)),
        (
            "t5_mirrored",
            "distances count from the key to the query",
            _buckets(lambda found, distances, options, site: found.flip(0)),
        ),
        ("t5_low", "all distances are off by one", patched(_t5_low)),
        ("t5_detached", "the table gets no gradient", patched(_detached)),
        ("t5_scaled", "the bias is multiplied by the scale of the scores", patched(_t5_scaled)),
        ("t5_tables", "its entry says that the table belongs to nobody", declares(tables=lambda options: "none")),
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
        ("shaw_unscaled", "the scale is left out", patched(_shaw_unscaled)),
        ("shaw_rounded", "the bias is rounded to bfloat16", patched(_shaw_rounded)),
        ("shaw_first_row", "all batch rows are given the bias of the first", patched(_first_row)),
        ("shaw_reads_query", "its entry says that the bias does not read the query", declares(reads_query=False)),
        ("shaw_flops", "its entry counts no operations", declares(flops=lambda options, site, batch, queries, keys: 0)),
    ],
)
