"""Uses a position scheme as a model does: its site, its inputs, and its results in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.inspection import BIAS_NAMES
from tfkit.plugin import DenseBias, DistanceBias, LinearBias
from tfkit.plugin.model_parts import PositionRange, PositionSite

from ..finding import Inconclusive
from .law import SINGLE, Excluded, LawExample, PartUnderTest, Structure

WIDTHS = (4, 6, 8, 12, 16, 5, 7, 32, 64)
HEAD_DIMS = (2, 4, 6, 8, 12, 16, 32, 64, 128, 80, 96, 256, 3, 5)
HEADS = ((1, 1), (2, 1), (3, 3), (4, 2), (6, 3), (5, 5))
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24)
FEW_TRIES = 40


Given = tuple[Tensor, Tensor, Tensor]
"""What a call works on: embeddings (B,L,M), queries (B,H,L,D) and new keys (B,G,N,D)."""


def site_of(subject: PartUnderTest, at: Structure) -> PositionSite:
    """The site of a case. A scheme on embeddings is reported the width alone."""
    if subject.entry.acts <= {"embeddings"}:
        return PositionSite(at["width"], rows=at["rows"] or None)
    return PositionSite(at["width"], at["heads"], at["head_dim"], at["rows"] or None, at["causal"], at.get("cross", False))


def reach(subject: PartUnderTest, options: Any, at: Structure) -> int | None:
    """How many positions there are at this site, or None for any."""
    known = [limit for limit in (subject.entry.max_len(options), at["rows"]) if limit]
    return min(known) if known else None


def draw_site(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """A site that the scheme does not refuse. Raises Inconclusive where none is found."""
    for at in _sites(random):
        if not subject.entry.unsupported(options, site_of(subject, at)):
            return at
    raise Inconclusive("its `unsupported` refuses every site that was tried")


def any_site(random: Random) -> Structure:
    """A site, whether the scheme accepts it or not."""
    heads, kv_heads = random.choice(HEADS)
    return {
        "width": random.choice(WIDTHS), "heads": heads, "kv_heads": kv_heads, "head_dim": random.choice((*HEAD_DIMS[:7], 3, 5)),
        "causal": random.random() < 0.5, "rows": 0, "batch": random.choice((1, 2, 3)),
    }  # fmt: skip


def _sites(random: Random) -> Iterator[Structure]:
    for _ in range(FEW_TRIES):
        yield any_site(random)
    at = any_site(random)
    for rows in (0, 24):
        for head_dim in HEAD_DIMS:
            for width in WIDTHS:
                for causal in (True, False):
                    yield {**at, "rows": rows, "head_dim": head_dim, "width": width, "causal": causal}


def changed(subject: PartUnderTest, options: Any, at: Structure, **sizes: int) -> Structure:
    """The case with other sizes, where the scheme does not refuse them; else as it was."""
    other = {**at, **sizes}
    return at if subject.entry.unsupported(options, site_of(subject, other)) else other


def draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """A site, and a length that fits into its positions."""
    at = draw_site(subject, options, random)
    limit = reach(subject, options, at)
    length = random.choice(LENGTHS)
    return {**at, "length": length if limit is None else min(length, limit)}


SHRINKS = {"batch": 1, "length": 1, "offset": 0}


def module_of(example: LawExample) -> nn.Module:
    """The scheme, built for the site of the case."""
    return example.built(site_of(example.subject, example.at))


def span_of(
    example: LawExample,
    queries: int,
    offset: int = 0,
    keys: int | None = None,
    key_start: int | None = None,
    visible: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> PositionRange:
    """The positions of a call; without more, a step that follows `offset` earlier tokens."""
    keys = offset + queries if keys is None else keys
    start = offset if key_start is None else key_start
    return PositionRange(queries, keys, offset, start, example.device, example.dtype if dtype is None else dtype, visible)


def inputs_of(example: LawExample, length: int) -> Given:
    """Embeddings (B,L,M), queries (B,H,L,D) and keys (B,G,L,D)."""
    at = example.at
    return (
        example.normal(at["batch"], length, at["width"]),
        example.normal(at["batch"], at["heads"], length, at["head_dim"]),
        example.normal(at["batch"], at["kv_heads"], length, at["head_dim"]),
    )


def effect(example: LawExample, module: Any, inputs: Given, span: PositionRange, scale: float = 0.5) -> dict[str, Tensor]:
    """What the scheme does to one call, checked for shape, dtype and kind.

    The embeddings (B,L,M), the rotated query (B,H,Q,D) and key (B,G,N,D), the dense bias (B,H,Q,K), as far as it acts there."""
    acts, entry = example.entry.acts, example.entry
    x, query, key = inputs
    effects: dict[str, Tensor] = {}
    if "embeddings" in acts:
        wider = entry.widens(example.options, site_of(example.subject, example.at))
        shape = torch.Size((*x.shape[:-1], x.shape[-1] + wider))
        effects["embeddings"] = example.alike("embeddings", module.embed(x, span), shape, x.dtype)
    tables = module.prepare(span) if acts - {"embeddings"} else None
    if "queries_keys" in acts:
        rotated_query, rotated_key = module.rotate(query, key, tables)
        effects["query"] = example.alike("query", rotated_query, query.shape, query.dtype)
        effects["key"] = example.alike("key", rotated_key, key.shape, key.dtype)
    if "scores" in acts:
        bias = module.bias(query, tables, scale)
        kind = BIAS_NAMES.get(type(bias))
        if kind not in entry.bias_kinds:
            raise example.broken(f"it gives a {kind or type(bias).__name__} bias and declares {sorted(entry.bias_kinds)}")
        effects["bias"] = dense(example, bias, query, span)
    return effects


def dense(example: LawExample, bias: Any, query: Tensor, span: PositionRange) -> Tensor:
    """A bias as (B,H,Q,K), from the definition of its kind."""
    B, H, Q = query.shape[:3]
    values = bias.slopes if isinstance(bias, LinearBias) else bias.values
    if not isinstance(values, Tensor):
        raise example.broken(f"the bias holds a {type(values).__name__}, no tensor")
    if values.dtype not in (torch.float32, query.dtype) or (isinstance(bias, LinearBias) and values.dtype != torch.float32):
        raise example.broken(
            f"the bias is {values.dtype}; a bias is float32 or of the query's dtype {query.dtype}, slopes float32"
        )
    example.finite("bias", values)
    distance = torch.arange(span.keys, device=values.device) - span.query_positions().unsqueeze(1)
    if isinstance(bias, LinearBias):
        example.alike("slopes", values, (H,))
        values = -values[:, None, None] * distance.abs()
    elif isinstance(bias, DistanceBias):
        if values.dim() != 2 or values.shape[0] != H or values.shape[1] < 1 or not isinstance(bias.low, int):
            raise example.broken(
                f"a distance bias holds ({H}, R) values and an int `low`; it has {tuple(values.shape)}, {bias.low!r}"
            )
        values = values[:, (distance - bias.low).clamp(0, values.shape[1] - 1)]
    elif isinstance(bias, DenseBias):
        try:
            return values.expand(B, H, Q, span.keys)
        except RuntimeError:
            raise example.broken(f"a dense bias {tuple(values.shape)} does not broadcast to {(B, H, Q, span.keys)}") from None
    return values.expand(B, H, Q, span.keys)


def row_size(*tensors: Tensor) -> Tensor:
    """The largest absolute value of each row of features, over all the tensors: (..., 1)."""
    return torch.stack([tensor.detach().double().abs().amax(-1, keepdim=True) for tensor in tensors]).amax(0)


def rounding(example: LawExample, farthest: int, *tensors: Tensor) -> Tensor:
    """What rounding may change in rows of features at positions up to `farthest`, an angle per position being rounded to
    float32 with its frequency: 4 u + 4 (p + 8) u_32 of the row's largest number. The scheme may round four times."""
    return (4 * example.unit + 4 * (farthest + 8) * 2.0**-24) * row_size(*tensors) + example.tiny


def bias_rounding(example: LawExample, module: nn.Module, inputs: Given, span: PositionRange) -> Tensor:
    """How much two evaluations of a bias (B,H,Q,K) may differ: not at all, or where it reads the query, by four roundings and
    the sums over D features of sum_d |q_d| |slope_d|, read out by leaving one feature out at a time."""
    exact = example.twin(module, site_of(example.subject, example.at))
    x, query, key = (tensor.detach().double() for tensor in inputs)
    wide = replace(span, dtype=torch.float64)
    whole = effect(example, exact, (x, query, key), wide)["bias"]
    size = whole.detach().abs()
    for feature in range(query.shape[-1] if example.entry.reads_query else 0):
        without = query.clone()
        without[..., feature] = 0.0
        left = effect(example, exact, (x, without, key), wide)["bias"]
        size = size + (whole - left).detach().abs()
    return (4 * example.unit + 2 * (query.shape[-1] + 8) * SINGLE) * size + example.tiny


def scores(query: Tensor, key: Tensor) -> Tensor:
    """q . k in float64, every query head against its own key head: (B,H,Q,N)."""
    groups = query.shape[1] // key.shape[1]
    return query.double() @ key.double().repeat_interleave(groups, 1).mT


def relative_bound(example: LawExample, farthest: int, query: Tensor, key: Tensor) -> Tensor:
    """How much two evaluations of the same score may differ.

    An angle t f is rounded to float32 once after its frequency: it is off by t u_32 at most, and turns a vector by as much.
    Sines, products and sums may be rounded to the dtype: four roundings of |a| + |b| <= sqrt(2) |(a, b)| each. So a rotated
    vector is off by (t u_32 + 6 u) of its length, a score by that of both its vectors, and two scores by

        2 (2 p u_32 + 12 u) |q| |k|
    """
    groups = query.shape[1] // key.shape[1]
    of_keys: Tensor = key.double().norm(dim=-1).repeat_interleave(groups, 1)
    lengths = query.double().norm(dim=-1).unsqueeze(-1) * of_keys.unsqueeze(-2)
    bound: Tensor = 2 * (2 * (farthest + 8) * SINGLE + 12 * example.unit) * lengths + example.tiny
    return bound


def acts_somewhere(subject: PartUnderTest, options: Any) -> bool:
    """For laws of every scheme that acts at all."""
    return bool(subject.entry.acts)


def at_least(least: int, axis: str) -> Callable[[PartUnderTest, Any, Random], Structure]:
    """A case with at least so many tokens or batch rows, where there is room."""

    def drawn(subject: PartUnderTest, options: Any, random: Random) -> Structure:
        at = draw(subject, options, random)
        if axis == "length" and (reach(subject, options, at) or least) < least:
            raise Excluded(f"it has fewer than {least} positions")
        return {**at, axis: max(at[axis], least)}

    return drawn
