"""Gradients of biases, computed tile by tile and summed where they are: no tensor of scores exists in memory.

dense      a tile of the bias at a time, summed over the batch rows, heads, queries or keys that share it
diagonals  sum of dS over all pairs (i, j) of one distance j - i: of that, the entries of a table between its ends take what is
           theirs. Its ends, which most pairs of a long call share, and slopes are summed by the other kernels on their way.

Every sum belongs to one program, in one order, so that the same call gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .backward import read_queries, read_sums, slopes
from .tile import FAR, head_of, near, of_program, offset_of, read, seen_keys


@triton.jit
def slopes_at(
    query_rows, key_rows, value_rows, grad_rows, LSE, SUMS, query_head, key_head, value_head, grad_head, head, b, h,
    row, start, stands, Q, K, scores, mask, bias, dropout, D: tl.constexpr, V: tl.constexpr, TILE_Q: tl.constexpr,
    TILE_K: tl.constexpr, TILE_D: tl.constexpr, TILE_V: tl.constexpr,
):  # fmt: skip
    """dS of one tile of one head: 0 where nothing is seen."""
    rows, keys = row + tl.arange(0, TILE_Q), start + tl.arange(0, TILE_K)
    position = near(stands) + rows
    low, high = near(stands) + row, near(stands) + row + TILE_Q - 1
    first, last = seen_keys(rows, stands, b, Q, K, mask)
    lse, sums, sees = read_sums(LSE + head, SUMS + head, row, Q, TILE_Q)
    query, grad = read_queries(query_rows, grad_rows, query_head, grad_head, sees, row, Q, D, V, TILE_Q, TILE_D, TILE_V)
    key = read(key_rows, key_head, start, K, D, TILE_K, TILE_D)
    value = read(value_rows, value_head, start, K, V, TILE_K, TILE_V)
    slope, _, _ = slopes(
        query, key, value, grad, lse, sums, False, rows, keys, start, position, low, high, first, last, b, h, Q, K,
        scores, mask, bias, dropout, TILE_K)  # fmt: skip
    return slope


@triton.jit(do_not_specialize=["B", "Q", "K", "offset", "SIZE_B", "SIZE_H", "SIZE_Q", "SIZE_K"])
def dense(
    query_rows, key_rows, value_rows, grad_rows, LSE, SUMS, GRAD_BIAS, B, SIZE_B, SIZE_H, SIZE_Q, SIZE_K, Q, K,
    offset, scores, mask, bias, dropout, D: tl.constexpr, V: tl.constexpr, TILE_Q: tl.constexpr,
    TILE_K: tl.constexpr, TILE_D: tl.constexpr, TILE_V: tl.constexpr,
):  # fmt: skip
    """Gradient (SIZE_B, SIZE_H, SIZE_Q, SIZE_K) float32, contiguous: a size of 1 where the call's is larger means shared."""
    tiles_q = tl.cdiv(SIZE_Q, TILE_Q)
    tiles_k = tl.cdiv(SIZE_K, TILE_K)
    program = tl.program_id(0)
    own_k = program % tiles_k
    own_q = program // tiles_k % tiles_q
    own_bh = program // (tiles_k * tiles_q)
    own_b, own_h = own_bh // SIZE_H, own_bh % SIZE_H
    to_b = tl.where(SIZE_B == B, own_b + 1, B)
    to_h = tl.where(SIZE_H == scores.H, own_h + 1, scores.H)
    to_q = tl.where(SIZE_Q == Q, own_q * TILE_Q + 1, Q)
    to_k = tl.where(SIZE_K == K, own_k * TILE_K + 1, K)
    total = tl.zeros([TILE_Q, TILE_K], tl.float32)
    for b32 in range(own_b, to_b):
        b = tl.cast(b32, tl.int64)
        stands = offset_of(b, offset, mask)
        for h32 in range(own_h, to_h):
            h = tl.cast(h32, tl.int64)
            g, head = h // scores.group, (b * scores.H + h) * Q
            for row in range(own_q * TILE_Q, to_q, TILE_Q):
                for start in range(own_k * TILE_K, to_k, TILE_K):
                    total += slopes_at(
                        query_rows, key_rows, value_rows, grad_rows, LSE, SUMS, head_of(query_rows, b, h),
                        head_of(key_rows, b, g), head_of(value_rows, b, g), head_of(grad_rows, b, h), head, b, h,
                        row, start, stands, Q, K, scores, mask, bias, dropout, D, V, TILE_Q, TILE_K, TILE_D,
                        TILE_V)  # fmt: skip
    rows, keys = own_q * TILE_Q + tl.arange(0, TILE_Q), own_k * TILE_K + tl.arange(0, TILE_K)
    if SIZE_Q != Q:
        total = tl.where(rows[:, None] == 0, tl.sum(total, 0)[None], 0.0)
    if SIZE_K != K:
        total = tl.where(keys[None] == 0, tl.sum(total, 1)[:, None], 0.0)
    at = GRAD_BIAS + (tl.cast(own_bh, tl.int64) * SIZE_Q + rows[:, None]) * SIZE_K + keys[None]
    tl.store(at, total, mask=(rows[:, None] < SIZE_Q) & (keys[None] < SIZE_K))


@triton.jit(do_not_specialize=["Q", "K", "offset", "bands"])
def diagonals(
    query_rows, key_rows, value_rows, grad_rows, LSE, SUMS, DIAGONALS, bands, Q, K, offset, scores, mask, bias, dropout,
    D: tl.constexpr, V: tl.constexpr, TILE: tl.constexpr, TILE_D: tl.constexpr, TILE_V: tl.constexpr,
):  # fmt: skip
    """sums (B,H,bands,2,TILE) float32, band c - a of tiles (a of queries, c of keys) after band, from the first one on that has
    a distance within the table: [0, t] holds the pairs with j - i = (c - a) TILE + t, [1, t] those with j - i less by TILE."""
    across, down = tl.cdiv(K, TILE), tl.cdiv(Q, TILE)
    band_number, b, h = of_program(bands, scores.H)
    g, head = h // scores.group, (b * scores.H + h) * Q
    stands = offset_of(b, offset, mask)
    band = first_band(stands, bias.low, TILE) + band_number
    query_head, grad_head = head_of(query_rows, b, h), head_of(grad_rows, b, h)
    key_head, value_head = head_of(key_rows, b, g), head_of(value_rows, b, g)
    steps = tl.arange(0, TILE)
    turned = steps[:, None] + steps[None]
    after = tl.zeros([TILE], tl.float32)
    before = tl.zeros([TILE], tl.float32)
    for a in range(tl.maximum(0, -band), tl.minimum(down, across - band)):
        slope = slopes_at(
            query_rows, key_rows, value_rows, grad_rows, LSE, SUMS, query_head, key_head, value_head, grad_head,
            head, b, h, a * TILE, (a + band) * TILE, stands, Q, K, scores, mask, bias, dropout, D, V, TILE, TILE,
            TILE_D, TILE_V)  # fmt: skip
        rolled = tl.gather(slope, turned % TILE, 1)
        after += tl.sum(tl.where(turned < TILE, rolled, 0.0), 0)
        before += tl.sum(tl.where(turned >= TILE, rolled, 0.0), 0)
    at = DIAGONALS + tl.program_id(0).to(tl.int64) * (2 * TILE) + steps
    tl.store(at, after)
    tl.store(at + TILE, before)


@triton.jit
def first_band(stands, low, TILE: tl.constexpr):
    """The band of tiles with the least j - i whose distance j - i - `stands` is above `low`, int32."""
    least = tl.minimum(tl.maximum(stands + low + 1, -FAR), FAR)
    return ((least + FAR) // TILE - FAR // TILE).to(tl.int32)
