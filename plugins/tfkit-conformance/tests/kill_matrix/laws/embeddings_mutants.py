"""Mutants of the position schemes that act on embeddings: sinusoids and learned tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin.model_parts import PositionRange

from .mutant import Built, Change, declares, law_mutants, overriding, patched


def _spans(change: Callable[[PositionRange], PositionRange]) -> Change:
    """Gives the scheme other positions."""
    return overriding("embed", lambda built, x, span: built.own(x, change(span)))


def _added(change: Callable[[Tensor, Tensor], Tensor]) -> Change:
    """Adds `change(x, added)` to x (B,L,M), where the scheme adds `added`."""
    return overriding("embed", lambda built, x, span: x + change(x, built.own(torch.zeros_like(x), span)))


def _from_zero(span: PositionRange) -> PositionRange:
    visible = None if span.visible is None else span.visible[:, span.offset :]
    return replace(span, offset=0, key_start=0, keys=span.queries, visible=visible)


def _later(span: PositionRange) -> PositionRange:
    return replace(
        span, offset=span.offset + 1, keys=span.keys + 1, visible=None if span.visible is None else _one_more(span.visible)
    )


def _one_more(visible: Tensor) -> Tensor:
    return torch.cat((torch.ones_like(visible[:, :1]), visible), 1)


def _first_row(span: PositionRange) -> PositionRange:
    return span if span.visible is None else replace(span, visible=span.visible[:1].expand_as(span.visible))


def _waves(power: float) -> Change:
    """Sinusoids with frequencies base^(-power i / M)."""

    def embed(built: Built, x: Tensor, span: PositionRange) -> Tensor:
        options, width = built.options, built.site.width
        positions = span.visible_positions() if options.count == "visible" else span.query_positions()
        index = torch.arange((width + 1) // 2, dtype=torch.float64, device=x.device)
        angle = positions.unsqueeze(-1) * options.base ** (-power * index / width)
        return x + torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[..., :width].to(x.dtype)

    return overriding("embed", embed)


def _swapped(x: Tensor, added: Tensor) -> Tensor:
    even = added.shape[-1] // 2 * 2
    pairs = torch.unflatten(added[..., :even], -1, (-1, 2)).flip(-1).flatten(-2)
    return torch.cat((pairs, added[..., even:]), -1)


def _table(rows: Callable[[Any, int, int], slice]) -> Change:
    """Adds rows of a learned table, chosen by `rows(options, first, last)`, without a check of the length."""

    def embed(built: Built, x: Tensor, span: PositionRange) -> Tensor:
        table = built.module.table
        chosen = table[rows(built.options, span.offset, span.offset + span.queries)]
        missing = span.queries - chosen.shape[0]
        return x + torch.cat((chosen, table[-1:].expand(missing, -1))) if missing > 0 else x + chosen

    return overriding("embed", embed)


def _wide(built: Built, x: Tensor, span: PositionRange) -> Any:
    return built.own(x.float(), replace(span, dtype=torch.float32))


def _concat_lost(built: Built, x: Tensor, span: PositionRange) -> Any:
    return built.module.projection(torch.cat((x, torch.zeros_like(x)), -1))


SHORT = {"max_len": 11}
MUTANTS = law_mutants(
    "position",
    sinusoidal=[
        ("sinusoidal_swapped", "sines and cosines are exchanged", _added(_swapped)),
        ("sinusoidal_exponent", "frequencies base^(-i/M) in place of base^(-2i/M)", _waves(1.0)),
        ("sinusoidal_from_one", "the first position is 1", _spans(_later)),
        ("sinusoidal_from_zero", "every call starts at position 0, whatever its offset", _spans(_from_zero)),
        ("sinusoidal_first_row", "all batch rows have the padding of the first", _spans(_first_row), {"count": "visible"}),
        ("sinusoidal_scaled", "what is added grows with the embedding", _added(lambda x, added: added + 0.01 * x)),
        ("sinusoidal_float32", "half-precision inputs give float32 outputs", overriding("embed", _wide)),
        (
            "sinusoidal_buffer",
            "a table is kept in a buffer",
            patched(lambda module, options, site: module.register_buffer("waves", torch.zeros(3))),
        ),
        ("sinusoidal_counts", "its entry says that padding does not count", declares(counts_padding=lambda options: False)),
        (
            "sinusoidal_concat",
            "zeros are concatenated in place of the sinusoids",
            overriding("embed", _concat_lost),
            {"combine": "concat"},
        ),
        (
            "sinusoidal_flops",
            "its entry does not count the projection",
            declares(flops=lambda options, site, batch, queries, keys: 0),
        ),
    ],
    sinusoidal_halves=[
        (
            "sinusoidal_hidden",
            "hidden tokens are counted where they must not be",
            _spans(lambda span: replace(span, visible=None)),
            {"count": "visible"},
        ),
        ("sinusoidal_nothing", "nothing is added", _added(lambda x, added: added * 0)),
        ("sinusoidal_half_size", "sinusoids are added at half their size", _added(lambda x, added: added / 2)),
        (
            "sinusoidal_counts_not",
            "its entry says that padding counts",
            declares(counts_padding=lambda options: True),
            {"count": "visible"},
        ),
    ],
    learned=[
        (
            "learned_offset",
            "row t + 1 in place of row t",
            _table(lambda options, first, last: slice(options.offset + first + 1, options.offset + last + 1)),
            SHORT,
        ),
        (
            "learned_row_offset",
            "`offset` is ignored",
            _table(lambda options, first, last: slice(first, last)),
            {"max_len": 11, "offset": 2},
        ),
        ("learned_from_zero", "every call starts at row 0, whatever its offset", _spans(_from_zero), SHORT),
        (
            "learned_clamped",
            "positions past the table read its last row",
            _table(lambda options, first, last: slice(options.offset + first, options.offset + last)),
            SHORT,
        ),
        ("learned_detached", "the table gets no gradient", _added(lambda x, added: added.detach()), SHORT),
        (
            "learned_hidden",
            "hidden tokens are counted where they must not be",
            _spans(lambda span: replace(span, visible=None)),
            {"max_len": 11, "count": "visible"},
        ),
        (
            "learned_longer",
            "its entry promises one position more than the table has",
            declares(max_len=lambda options: options.max_len + 1),
            SHORT,
        ),
        (
            "learned_shape",
            "its entry forgets the rows before the first position",
            declares(parameters=lambda options, site: ()),
            SHORT,
        ),
    ],
)
