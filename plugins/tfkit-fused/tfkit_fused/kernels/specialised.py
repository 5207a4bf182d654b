"""Forward by specialised warps: one group of warps has the hardware copy tiles of keys and values (TMA), two others multiply,
each for half of the queries. One of the two can compute exponentials while the other uses the tensor cores.

For calls without a bias, softcap or dropout, whose queries all see the same keys, padding aside. Triton makes groups of warps
from one loop without a branch whose operands all come by descriptors; so every tile is masked, all queries by the same bounds.
That is so on sm_90; in the interpreter the program is an ordinary one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import LN_2, LOG2_E, head_of, longest, near, of_program, write


@triton.jit(do_not_specialize=["Q", "K"])
def specialised(
    query_rows, key_rows, value_rows, output_rows, LSE, Q, K, scores, mask, D: tl.constexpr, V: tl.constexpr,
    TILE_Q: tl.constexpr, TILE_K: tl.constexpr, TILE_D: tl.constexpr, TILE_V: tl.constexpr,
):  # fmt: skip
    """output (B,H,Q,V) and the natural log-sum-exp (B,H,Q) float32, -inf where a query sees no key. The scale is positive."""
    tile, b, h = of_program(tl.cdiv(Q, TILE_Q), scores.H)
    g = h // scores.group
    start = tile * TILE_Q
    rows = start + tl.arange(0, TILE_Q)
    stop = Q
    if mask.query_lengths is not None:
        stop = tl.minimum(Q, near(tl.load(mask.query_lengths + b).to(tl.int64)))
    end = tl.where(start < stop, longest(b, K, mask), 0)

    query_at, key_at, value_at = head_of(query_rows, b, h), head_of(key_rows, b, g), head_of(value_rows, b, g)
    query_tiles = tl.make_tensor_descriptor(query_rows.at + query_at, [Q, D], [query_rows.n, 1], [TILE_Q, TILE_D])
    key_tiles = tl.make_tensor_descriptor(key_rows.at + key_at, [K, D], [key_rows.n, 1], [TILE_K, TILE_D])
    value_tiles = tl.make_tensor_descriptor(value_rows.at + value_at, [K, V], [value_rows.n, 1], [TILE_K, TILE_V])
    query = query_tiles.load([start, 0])
    total = tl.zeros([TILE_Q, TILE_V], tl.float32)
    weight = tl.zeros([TILE_Q], tl.float32)
    highest = tl.full([TILE_Q], float("-inf"), tl.float32)
    unit = scores.scale * LOG2_E
    for at in tl.range(0, end, TILE_K, warp_specialize=True):
        key = key_tiles.load([at, 0])
        score = tl.dot(query, tl.trans(key), input_precision="ieee")
        keys = at + tl.arange(0, TILE_K)
        score = tl.where((keys < end)[None], score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1) * unit)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp2(highest - level)
        power = tl.exp2(score * unit - level[:, None])
        weight = weight * shrink + tl.sum(power, 1)
        value = value_tiles.load([at, 0])
        total = total * shrink[:, None] + tl.dot(power.to(value.dtype), value, input_precision="ieee")
        highest = higher

    sees = (rows < stop) & (weight != 0.0)  # a NaN is not zero: it propagates
    output = tl.where(sees[:, None], total / tl.where(sees, weight, 1.0)[:, None], 0.0)
    write(output_rows, head_of(output_rows, b, h), start, Q, V, output, TILE_Q, TILE_V)
    lse = tl.where(sees, (highest + tl.log2(tl.where(sees, weight, 1.0))) * LN_2, float("-inf"))
    tl.store(LSE + (b * scores.H + h) * Q + rows, lse, mask=rows < Q)
