"""Forward: a program walks along the keys for one tile of queries, with the online softmax.

    m' = max(m, max_j s_j)      l' = l 2^(m - m') + sum_j 2^(s_j - m')      a' = a 2^(m - m') + sum_j 2^(s_j - m') v_j

(Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867; Dao 2023, https://arxiv.org/abs/2307.08691), with s in units of
log2(e). Tiles that no query sees are never read; tiles that every query sees whole are not masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import (
    LN_2,
    LOG2_E,
    far_bias,
    head_of,
    kept,
    narrowed_keys,
    near,
    never_whole,
    of_program,
    offset_of,
    read,
    scored,
    seen_by_tile,
    seen_keys,
    shown,
    write,
)


@triton.jit
def sweep(
    total, weight, highest, query, key_rows, value_rows, key_head, value_head, begin, end, whole_from, whole_to, rows,
    position, low, high, first, last, b, h, Q, K, scores, mask, bias, dropout, D: tl.constexpr, V: tl.constexpr,
    TILE_K: tl.constexpr, TILE_D: tl.constexpr, TILE_V: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """The tiles of keys from `begin` to `end`, added to (total, weight, highest); from `whole_from` to `whole_to` without a
    mask. Queries stand at positions from `low` to `high`.

    One loop with a branch, not three loops: ptxas makes the products of loops in a row wait for each other.
    """
    if DESCRIBED:
        key_tiles = tl.make_tensor_descriptor(key_rows.at + key_head, [K, D], [key_rows.n, 1], [TILE_K, TILE_D])
        value_tiles = tl.make_tensor_descriptor(value_rows.at + value_head, [K, V], [value_rows.n, 1], [TILE_K, TILE_V])
    for start in range(begin, end, TILE_K):
        keys = start + tl.arange(0, TILE_K)
        key = key_tiles.load([start, 0]) if DESCRIBED else read(key_rows, key_head, start, K, D, TILE_K, TILE_D)
        far, is_near = far_bias(start, low, high, h, bias, TILE_K)
        dot = tl.dot(query, tl.trans(key), input_precision="ieee")
        score, unit = dot, scores.scale * LOG2_E
        if bias.kind is not None or scores.softcap is not None or not scores.rising:
            score, _ = scored(dot, rows[:, None], keys[None], position[:, None], b, h, Q, K, far, is_near, scores, bias)
            unit = 1.0
        if never_whole(mask) or (start < whole_from) | (start >= whole_to):
            here = shown(rows[:, None], keys[None], first[:, None], last[:, None], b, h, Q, K, mask)
            score = tl.where(here, score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1) * unit)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(highest - level)
        power = tl.exp2(score * unit - level[:, None])
        weight = weight * shrink + tl.sum(power, 1)
        if dropout.seed is not None:
            power = tl.where(kept(rows[:, None], keys[None], start, b, h, scores.H, dropout), power, 0.0)
        value = value_tiles.load([start, 0]) if DESCRIBED else read(value_rows, value_head, start, K, V, TILE_K, TILE_V)
        total = total * shrink[:, None] + tl.dot(power.to(value.dtype), value, input_precision="ieee")
        highest = higher
    return total, weight, highest


@triton.jit(do_not_specialize=["Q", "K", "offset"])
def forward(
    query_rows, key_rows, value_rows, output_rows, LSE, Q, K, offset, scores, mask, bias, dropout, D: tl.constexpr,
    V: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr, TILE_D: tl.constexpr, TILE_V: tl.constexpr,
    DESCRIBED: tl.constexpr,
):  # fmt: skip
    """output (B,H,Q,V) and the natural log-sum-exp (B,H,Q) float32, -inf where a query sees no key."""
    tiles = tl.cdiv(Q, TILE_Q)
    tile, b, h = of_program(tiles, scores.H)
    g = h // scores.group
    start = (tiles - 1 - tile) * TILE_Q  # under causality the last tiles are the longest: they begin first
    rows = start + tl.arange(0, TILE_Q)
    stands = offset_of(b, offset, mask)
    position = near(stands) + rows
    first, last = seen_keys(rows, stands, b, Q, K, mask)
    begin, end, whole_from, whole_to = seen_by_tile(start, start + TILE_Q, stands, b, Q, K, mask, TILE_K)
    begin, end = narrowed_keys(begin, end, rows, b, Q, K, mask)
    begin = begin // TILE_K * TILE_K

    query = read(query_rows, head_of(query_rows, b, h), start, Q, D, TILE_Q, TILE_D)
    key_head, value_head = head_of(key_rows, b, g), head_of(value_rows, b, g)
    total = tl.zeros([TILE_Q, TILE_V], tl.float32)
    weight = tl.zeros([TILE_Q], tl.float32)
    highest = tl.full([TILE_Q], float("-inf"), tl.float32)

    real = first < K  # padding sees nothing; what it gathers in unmasked tiles is taken out at the end
    total, weight, highest = sweep(
        total, weight, highest, query, key_rows, value_rows, key_head, value_head, begin, end, whole_from, whole_to, rows,
        position, near(stands) + start, near(stands) + start + TILE_Q - 1, first, last, b, h, Q, K, scores, mask, bias,
        dropout, D, V, TILE_K, TILE_D, TILE_V, DESCRIBED)  # fmt: skip

    sees = real & (weight != 0.0)  # a NaN is not zero: it propagates
    output = tl.where(sees[:, None], total / tl.where(sees, weight, 1.0)[:, None], 0.0)
    if dropout.seed is not None:
        output = output * dropout.surviving
    write(output_rows, head_of(output_rows, b, h), start, Q, V, output, TILE_Q, TILE_V)
    lse = tl.where(sees, (highest + tl.log2(tl.where(sees, weight, 1.0))) * LN_2, float("-inf"))
    tl.store(LSE + (b * scores.H + h) * Q + rows, lse, mask=rows < Q)
