"""One tile of the score matrix: who sees whom, what is added, what is dropped, and its gradient.

Everything is free of orientation: `rows` (of queries) and `keys` are index tiles that broadcast against each other, (M, 1) with
(1, N) in kernels that walk along keys, (1, M) with (N, 1) in the one that walks along queries. Scores are in units of log2(e),
so that weights are powers of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
FAR = tl.constexpr(1 << 29)
"""Positions are clamped to this before they become distances, which fit 32 bits then."""
LARGE = tl.constexpr((1 << 63) - 1)


@triton.jit
def head_of(rows_of, b, h):
    """Where the rows of one head of one batch row begin."""
    return b * rows_of.b + h * rows_of.h


@triton.jit
def read(rows_of, head, start, length, width: tl.constexpr, TILE: tl.constexpr, TILE_D: tl.constexpr):
    """Rows start .. start + TILE of the (length, width) that begin at `head`, 0 beyond both ends."""
    steps, features = tl.arange(0, TILE), tl.arange(0, TILE_D)
    at = rows_of.at + head + tl.cast(start, tl.int64) * rows_of.n + steps[:, None] * rows_of.n + features[None] * rows_of.d
    return tl.load(at, mask=(start + steps[:, None] < length) & (features[None] < width), other=0.0)


@triton.jit
def write(rows_of, head, start, length, width: tl.constexpr, tile, TILE: tl.constexpr, TILE_D: tl.constexpr):
    """A tile into rows start .. start + TILE of the (length, width) that begin at `head`, rounded to what they hold."""
    steps, features = tl.arange(0, TILE), tl.arange(0, TILE_D)
    at = rows_of.at + head + tl.cast(start, tl.int64) * rows_of.n + steps[:, None] * rows_of.n + features[None] * rows_of.d
    there = (start + steps[:, None] < length) & (features[None] < width)
    tl.store(at, tile.to(rows_of.at.dtype.element_ty), mask=there)


@triton.jit
def positions(rows, b, offset, mask):
    """Where queries stand: offset + i, int64."""
    if mask.offsets is not None:
        return rows.to(tl.int64) + tl.load(mask.offsets + b).to(tl.int64)
    return rows.to(tl.int64) + offset


@triton.jit
def seen_keys(rows, position, b, Q, K, mask):
    """The interval [first, last) of keys that each query may see by its position and the lengths. Where the query is padding it
    is [K, 0)."""
    first = position * 0
    last = first + K
    if mask.key_lengths is not None:
        last = tl.minimum(last, tl.load(mask.key_lengths + b).to(tl.int64))
    if mask.right is not None:
        last = tl.minimum(last, position + mask.right + 1)
    if mask.left is not None:
        first = tl.maximum(first, position - mask.left)
    real = rows < Q
    if mask.query_lengths is not None:
        real = real & (rows < tl.load(mask.query_lengths + b))
    first = tl.where(real, tl.minimum(first, K), K)
    last = tl.where(real, tl.maximum(last, 0), 0)
    return first.to(tl.int32), last.to(tl.int32)


@triton.jit
def seen_queries(start, stop, b, Q, offset, mask):
    """The interval [first, last) of queries that may see one of the keys [start, stop)."""
    stands = tl.cast(start, tl.int64) * 0 + offset
    if mask.offsets is not None:
        stands = tl.load(mask.offsets + b).to(tl.int64)
    first = stands * 0
    last = first + Q
    if mask.query_lengths is not None:
        last = tl.minimum(last, tl.load(mask.query_lengths + b).to(tl.int64))
    if mask.right is not None:
        first = tl.maximum(first, tl.cast(start, tl.int64) - mask.right - stands)
    if mask.left is not None:
        last = tl.minimum(last, tl.cast(stop, tl.int64) + mask.left - stands)
    if mask.key_lengths is not None:
        last = tl.where(start < tl.load(mask.key_lengths + b), last, 0)
    return tl.minimum(first, Q).to(tl.int32), tl.maximum(last, 0).to(tl.int32)


@triton.jit
def shown(rows, keys, first, last, b, h, Q, K, mask):
    """Whether each query of the tile sees each key."""
    here = (keys >= first) & (keys < last)
    if mask.key_visible is not None:
        at = mask.key_visible + b * mask.key_visible_b + keys.to(tl.int64) * mask.key_visible_k
        here = here & (tl.load(at, mask=keys < K, other=0) != 0)
    if mask.query_segments is not None:
        of_query = mask.query_segments + b * mask.query_segments_b + rows.to(tl.int64) * mask.query_segments_q
        of_key = mask.key_segments + b * mask.key_segments_b + keys.to(tl.int64) * mask.key_segments_k
        here = here & (
            tl.load(of_query, mask=rows < Q, other=0).to(tl.int64) == tl.load(of_key, mask=keys < K, other=0).to(tl.int64)
        )
    if mask.visible is not None:
        at = mask.visible + b * mask.visible_b + h * mask.visible_h
        at = at + rows.to(tl.int64) * mask.visible_q + keys.to(tl.int64) * mask.visible_k
        here = here & (tl.load(at, mask=(rows < Q) & (keys < K), other=0) != 0)
    return here


@triton.jit
def is_worthwhile(rows, keys, b, Q, K, mask):
    """Whether any query of a tile may see any of its keys by visibility and segments: False lets it be skipped."""
    if mask.key_visible is None and mask.query_segments is None:
        return True
    some = tl.min(keys, 0) < K
    if mask.key_visible is not None:
        at = mask.key_visible + b * mask.key_visible_b + keys.to(tl.int64) * mask.key_visible_k
        some = some & (tl.max(tl.load(at, mask=keys < K, other=0).to(tl.int32), 0) != 0)
    if mask.query_segments is not None:
        of_query = mask.query_segments + b * mask.query_segments_b + rows.to(tl.int64) * mask.query_segments_q
        of_key = mask.key_segments + b * mask.key_segments_b + keys.to(tl.int64) * mask.key_segments_k
        queries = tl.load(of_query, mask=rows < Q, other=0).to(tl.int64)
        segments = tl.load(of_key, mask=keys < K, other=0).to(tl.int64)
        lowest, highest = tl.min(tl.where(rows < Q, queries, LARGE), 0), tl.max(tl.where(rows < Q, queries, -LARGE), 0)
        some = some & (tl.min(tl.where(keys < K, segments, LARGE), 0) <= highest)
        some = some & (tl.max(tl.where(keys < K, segments, -LARGE), 0) >= lowest)
    return some


@triton.jit
def tanh(x):
    """By a polynomial near 0 (Cephes, tanhf) and by exponentials beyond it: to a few units in the last place everywhere."""
    z = x * x
    small = (((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z - 3.33332819422e-1
    small = small * z * x + x
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))
    large = (1.0 - e) / (1.0 + e)
    return tl.where(tl.abs(x) < 0.625, small, tl.where(x < 0, -large, large))


@triton.jit
def scored(dot, rows, keys, position, b, h, Q, K, scores, bias):
    """(scores in units of log2(e), tanh of the capped ones): softcap tanh(scale dot / softcap) + bias."""
    score = dot * scores.scale
    bent = score
    if scores.softcap is not None:
        bent = tanh(score / scores.softcap)
        score = scores.softcap * bent
    if bias.kind == "dense":
        at = bias.at + b * bias.b + h * bias.h + rows.to(tl.int64) * bias.q + keys.to(tl.int64) * bias.k
        score += tl.load(at, mask=(rows < Q) & (keys < K), other=0.0).to(tl.float32)
    if bias.kind == "linear":
        score -= tl.load(bias.at + h * bias.h).to(tl.float32) * tl.abs(keys - near(position)).to(tl.float32)
    if bias.kind == "distance":
        place = tl.minimum(tl.maximum(keys - near(position) - bias.low, 0), bias.size - 1)
        score += tl.load(bias.at + h * bias.h + place.to(tl.int64) * bias.k).to(tl.float32)
    return score * LOG2_E, bent


@triton.jit
def near(position):
    return tl.minimum(tl.maximum(position, -FAR), FAR).to(tl.int32)


@triton.jit
def kept(rows, keys, b, h, H, dropout):
    """Which weights dropout keeps: Philox (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405) counted by key, query
    and head, so that a weight's draw depends on nothing else."""
    zero = (rows + keys) * 0
    key, query, head = (
        (zero + keys).to(tl.uint32),
        (zero + rows).to(tl.uint32),
        (zero + (b * H + h).to(tl.int32)).to(tl.uint32),
    )
    drawn, _, _, _ = tl.philox(tl.load(dropout.seed), key, query, head, zero.to(tl.uint32))
    return (drawn >> 1).to(tl.int32) >= dropout.threshold


@triton.jit
def pulled(weights, dot_value, sums, bent, rows, keys, b, h, scores, dropout):
    """From the weights P before dropout and dO . v: (P after dropout, the gradients of the scores, and so of a bias, and of
    scale q.k)."""
    dropped = weights
    if dropout.seed is not None:
        keep = kept(rows, keys, b, h, scores.H, dropout)
        dropped = tl.where(keep, weights * dropout.surviving, 0.0)
        dot_value = tl.where(keep, dot_value * dropout.surviving, 0.0)
    slope = tl.where(weights != 0.0, weights * (dot_value - sums), 0.0)
    raw = slope
    if scores.softcap is not None:
        raw = slope * (1.0 - bent * bent)
    return dropped, slope, raw
