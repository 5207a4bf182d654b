"""Mutants of rotary positions, on an implementation of its own: waves as complex numbers exp(i t f)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.plugin.model_parts import PositionRange

from .mutant import Built, Change, declares, law_mutants, overriding, patched

ToTensor = Callable[[Tensor], Tensor]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _angles(options: Any, dims: int, power: float = 2.0) -> Tensor:
    return float(options.base) ** (-torch.arange(dims // 2, dtype=torch.float64) * power / dims)


def turned(x: Tensor, waves: Tensor, dims: int, interleaved: bool) -> Tensor:
    """The first `dims` features of x, each pair times a complex number."""
    head = x[..., :dims].double()
    pairs = torch.unflatten(head, -1, (-1, 2)) if interleaved else torch.unflatten(head, -1, (2, -1)).transpose(-1, -2)
    spun = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * waves.to(x.device))
    done = spun.flatten(-2) if interleaved else spun.transpose(-1, -2).flatten(-2)
    return torch.cat((done.to(x.dtype), x[..., dims:]), -1)


def spoilt(
    positions: ToTensor = _same,
    angles: ToTensor = _same,
    power: float = 2.0,
    queries: float = 1.0,
    keys: float = 1.0,
    swapped: bool = False,
    from_zero: bool = False,
    keys_as_queries: bool = False,
    all_dims: bool = False,
    in_dtype: bool = False,
    grown: float = 1.0,
) -> Change:
    """Rotary positions with some of these errors. `queries` and `keys` multiply their angles."""

    def patch(module: nn.Module, options: Any, site: Any) -> None:
        dims = site.head_dim if all_dims else options.dims or site.head_dim
        interleaved = bool(module.interleaved) is not swapped

        def waves(where: Tensor, dtype: torch.dtype, sign: float) -> Tensor:
            steps = positions(where.double() - (where[0] if from_zero and len(where) else 0))
            turn = steps.unsqueeze(-1) * angles(_angles(options, dims, power)).to(where.device) * sign
            turn = turn.to(dtype).double() if in_dtype else turn
            return torch.polar(torch.full_like(turn, grown), turn)

        def prepare(span: PositionRange) -> tuple[Tensor, Tensor]:
            new = span.query_positions()[: span.keys - span.key_start] if keys_as_queries else span.key_positions()
            return waves(span.query_positions(), span.dtype, queries), waves(new, span.dtype, keys)

        def rotate(query: Tensor, key: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            wide = tables[1] if tables[1].shape[0] == key.shape[2] else tables[1][: key.shape[2]]
            wide = wide if wide.shape[0] == key.shape[2] else wide.repeat(key.shape[2], 1)[: key.shape[2]]
            return turned(query, tables[0], dims, interleaved), turned(key, wide, dims, interleaved)

        object.__setattr__(module, "prepare", prepare)
        object.__setattr__(module, "rotate", rotate)

    return patched(patch)


def _one_pair(angles: Tensor) -> Tensor:
    return torch.cat((angles[:-1], angles[-1:] * 1.01)) if len(angles) > 1 else angles * 1.01


def _remembers(module: nn.Module, options: Any, site: Any) -> None:
    own: Any = module.prepare
    kept: dict[tuple[int, int], Any] = {}

    def prepare(span: PositionRange) -> Any:
        key = (span.queries, span.keys - span.key_start)
        if key not in kept:
            kept[key] = own(span)
        return kept[key]

    object.__setattr__(module, "prepare", prepare)


def _writes(built: Built, query: Tensor, key: Tensor, tables: Any) -> tuple[Tensor, Tensor]:
    done: tuple[Tensor, Tensor] = built.own(query, key, tables)
    key.detach().copy_(done[1].detach())
    return done


def _stretched(built: Built, query: Tensor, key: Tensor, tables: Any) -> tuple[Tensor, Tensor]:
    rotated, rotated_key = built.own(query, key, tables)
    steps = torch.arange(query.shape[2], device=query.device, dtype=query.dtype)[:, None]
    return rotated * (1 + 0.05 * steps), rotated_key


def _loses_tail(built: Built, query: Tensor, key: Tensor, tables: Any) -> tuple[Tensor, Tensor]:
    rotated, rotated_key = built.own(query, key, tables)
    dims = built.options.dims
    return torch.cat((rotated[..., :dims], query[..., dims:] * 0), -1), rotated_key


YARN = {"kind": "yarn", "factor": 4.0, "trained_len": 64}
LLAMA = {"kind": "llama3", "factor": 8.0, "trained_len": 64}


MUTANTS = law_mutants(
    "position",
    rotary_half=[
        (
            "rotary_bf16_positions",
            "positions are rounded to bfloat16, so that 256 and 257 are one",
            spoilt(positions=lambda t: t.bfloat16().double()),
        ),
        ("rotary_dtype_angles", "angles are rounded to the model's dtype", spoilt(in_dtype=True)),
        ("rotary_keys_only", "queries are not rotated", spoilt(queries=0.0)),
        ("rotary_opposite", "queries turn one way and keys the other", spoilt(queries=-1.0)),
        ("rotary_backwards", "both turn the wrong way: every score is right", spoilt(queries=-1.0, keys=-1.0)),
        (
            "rotary_half_as_interleaved",
            "pairs are neighbours where they must be half a head apart: still relative",
            spoilt(swapped=True),
        ),
        ("rotary_one_pair", "the frequency of the last pair is 1 % too high", spoilt(angles=_one_pair)),
        ("rotary_exponent", "frequencies base^(-i/dims) in place of base^(-2i/dims)", spoilt(power=1.0)),
        ("rotary_from_zero", "every call starts at position 0, whatever its offset", spoilt(from_zero=True)),
        ("rotary_from_one", "the first position is 1: still relative", spoilt(positions=lambda t: t + 1)),
        ("rotary_keys_as_queries", "new keys are given the positions of the queries", spoilt(keys_as_queries=True)),
        ("rotary_grown", "rotated vectors are 1 % longer", spoilt(grown=1.01)),
        ("rotary_all_dims", "`dims` is ignored", spoilt(all_dims=True), {"dims": 4}),
        ("rotary_lost_tail", "query features beyond `dims` are set to 0", overriding("rotate", _loses_tail), {"dims": 4}),
        ("rotary_yarn_ignored", "the scaling is ignored", spoilt(), {"scaling": YARN}),
        (
            "rotary_yarn_factor",
            "the attention factor of yarn is left out",
            patched(
                lambda module, options, site: setattr(
                    module, "scaling", options.scaling.model_copy(update={"attention_factor": 1.0})
                )
            ),
            {"scaling": YARN},
        ),
        ("rotary_remembers", "tables of an earlier call of the same length are used again", patched(_remembers)),
        ("rotary_writes", "keys are rotated in place", overriding("rotate", _writes)),
        ("rotary_odd", "its `unsupported` accepts an odd number of features", declares(unsupported=lambda options, site: ())),
    ],
    rotary_interleaved=[
        (
            "rotary_interleaved_as_half",
            "pairs are half a head apart where they must be neighbours: still relative",
            spoilt(swapped=True),
        ),
        ("rotary_llama3_ignored", "the scaling is ignored", spoilt(), {"scaling": LLAMA}),
        ("rotary_stretched", "later queries grow longer", overriding("rotate", _stretched)),
    ],
)
