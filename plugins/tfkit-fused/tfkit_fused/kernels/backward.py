"""Backward in two kernels, one that walks along queries for keys and values, one that walks along keys for queries; or in the
first alone, which adds to the gradients of queries on its way. What a bias by distance needs of the scores' gradients is summed
on the way as well, but for the entries of a table between its ends (see `bias`).

    D_i   = dO_i . O_i - dlse_i                                   (`row_sums`, once)
    P     = 2^(s - lse)      dP = dO v^T      dS = P (dP - D)
    dv_j  = sum_i P_ij dO_i           dk_j = scale sum_i dS_ij q_i           dq_i = scale sum_j dS_ij k_j

(Dao 2023, https://arxiv.org/abs/2307.08691, algorithm 2). The two both compute P anew, seven products of tiles in all; no sum
is shared between programs, so the same call gives the same bits. The one needs five products, and adds to dq with atomics, in
whatever order programs come. Rows that see no key take no part, whatever their numbers are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import (
    LOG2_E,
    far_bias,
    head_of,
    longest,
    narrowed_keys,
    narrowed_queries,
    near,
    never_whole,
    of_program,
    offset_of,
    pulled,
    read,
    scored,
    seen_by_tile,
    seen_keys,
    seen_queries,
    shown,
    whole_queries,
    write,
)


@triton.jit(do_not_specialize=["Q"])
def row_sums(output_rows, grad_rows, GRAD_LSE, LSE, SUMS, H, Q, V: tl.constexpr, TILE_Q: tl.constexpr, TILE_V: tl.constexpr):
    """sums (B,H,Q) float32: dO . O - dlse, 0 in rows that see no key."""
    tiles = tl.cdiv(Q, TILE_Q)
    tile, b, h = of_program(tiles, H)
    start, head = tile * TILE_Q, (b * H + h) * Q
    rows = start + tl.arange(0, TILE_Q)
    output = read(output_rows, head_of(output_rows, b, h), start, Q, V, TILE_Q, TILE_V).to(tl.float32)
    grad = read(grad_rows, head_of(grad_rows, b, h), start, Q, V, TILE_Q, TILE_V).to(tl.float32)
    sums = tl.sum(output * grad, 1)
    if GRAD_LSE is not None:
        sums -= tl.load(GRAD_LSE + head + rows, mask=rows < Q, other=0.0)
    lse = tl.load(LSE + head + rows, mask=rows < Q, other=float("-inf"))
    tl.store(SUMS + head + rows, tl.where(lse != float("-inf"), sums, 0.0), mask=rows < Q)


@triton.jit
def read_sums(LSE, SUMS, start, Q, TILE_Q: tl.constexpr):
    """Of a tile of one head's queries: log-sum-exps (units of log2(e)), row sums, and whether they see a key. The weights of
    those that see none are 0: their log-sum-exp counts as infinite."""
    rows = start + tl.arange(0, TILE_Q)
    lse = tl.load(LSE + rows, mask=rows < Q, other=float("-inf"))
    sums = tl.load(SUMS + rows, mask=rows < Q, other=0.0)
    sees = lse != float("-inf")
    return tl.where(sees, lse * LOG2_E, float("inf")), sums, sees


@triton.jit
def read_queries(
    query_rows, grad_rows, query_head, grad_head, sees, start, Q, D: tl.constexpr, V: tl.constexpr, TILE_Q: tl.constexpr,
    TILE_D: tl.constexpr, TILE_V: tl.constexpr,
):  # fmt: skip
    """A tile of one head's queries and the gradients of their outputs, 0 where a query sees no key."""
    query = tl.where(sees[:, None], read(query_rows, query_head, start, Q, D, TILE_Q, TILE_D), 0.0)
    grad = tl.where(sees[:, None], read(grad_rows, grad_head, start, Q, V, TILE_Q, TILE_V), 0.0)
    return query, grad


@triton.jit
def described_rows(rows_of, head, first, last, width: tl.constexpr, TILE: tl.constexpr, TILE_D: tl.constexpr):
    """The rows [first, last) of the (length, width) that begin at `head`, for the hardware to copy; all others are 0. There is
    one at least."""
    at = rows_of.at + head + first.to(tl.int64) * rows_of.n
    return tl.make_tensor_descriptor(at, [tl.maximum(last - first, 1), width], [rows_of.n, 1], [TILE, TILE_D])


@triton.jit
def beyond_ends(slope, keys, position, is_near, bias):
    """Of gradients of scores: for each row of the tile, what the slope of a linear bias takes of them, or the ends of a table.

    linear      sum of |j - i| dS                         and nothing
    distance    sum of dS over distances up to `low`      and over those from `low + size - 1` on
    """
    if bias.kind == "linear":
        before = tl.sum(slope * tl.abs(keys.to(tl.float32) - position.to(tl.float32)), 1)
        after = before * 0.0
    else:
        distance = keys - position
        top = bias.low + tl.maximum(bias.size - 1, 1)
        before = tl.sum(tl.where(distance <= bias.low, slope, 0.0), 1)
        after = tl.sum(tl.where(distance >= top, slope, 0.0), 1)
    return before, after


@triton.jit(do_not_specialize=["Q", "K", "offset"])
def keys_and_values(
    query_rows, key_rows, value_rows, grad_rows, LSE, SUMS, grad_key_rows, grad_value_rows, GRAD_QUERY, BIAS_SUMS, Q, K,
    offset, scores, mask, bias, dropout, D: tl.constexpr, V: tl.constexpr, MASK_ALL: tl.constexpr, TILE_Q: tl.constexpr,
    TILE_K: tl.constexpr, TILE_D: tl.constexpr, TILE_V: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """dk (B,G,K,D) and dv (B,G,K,V): one tile of keys, all query heads that read it. Where there is a GRAD_QUERY (B,H,Q,D),
    float32 and contiguous, the tile's part of dq is added to it, and BIAS_SUMS (B,H,tiles,2) may be asked for.

    MASK_ALL: whole tiles are masked, too, for devices before sm_90, where the branch around the mask spills registers.
    DESCRIBED: the hardware copies tiles of queries and of gradients. Each query sees an interval of keys, so that the queries
    that see one are an interval, too: beyond it the hardware fills in zeros.
    """
    tiles = tl.cdiv(K, TILE_K)
    tile, b, g = of_program(tiles, scores.H // scores.group)
    start = tile * TILE_K
    keys, features = start + tl.arange(0, TILE_K), tl.arange(0, TILE_D)
    key = read(key_rows, head_of(key_rows, b, g), start, K, D, TILE_K, TILE_D)
    value = read(value_rows, head_of(value_rows, b, g), start, K, V, TILE_K, TILE_V)
    grad_key = tl.zeros([TILE_K, TILE_D], tl.float32)
    grad_value = tl.zeros([TILE_K, TILE_V], tl.float32)
    stands = offset_of(b, offset, mask)
    length = longest(b, K, mask)
    begin, end = seen_queries(start, tl.minimum(start + TILE_K, length), b, Q, stands, mask)
    begin, end = narrowed_queries(begin, end, keys, b, Q, K, mask)
    end = tl.where(begin < end, end, 0)
    whole_from, whole_to = whole_queries(start, start + TILE_K, b, Q, K, stands, mask)
    first_seeing, last_seeing = seen_queries(0, length, b, Q, stands, mask)
    for member in range(scores.group):
        h = g * scores.group + member
        head = (b * scores.H + h) * Q
        query_head, grad_head = head_of(query_rows, b, h), head_of(grad_rows, b, h)
        if DESCRIBED:
            query_tiles = described_rows(query_rows, query_head, first_seeing, last_seeing, D, TILE_Q, TILE_D)
            grad_tiles = described_rows(grad_rows, grad_head, first_seeing, last_seeing, V, TILE_Q, TILE_V)
        before, after = tl.zeros([TILE_K], tl.float32), tl.zeros([TILE_K], tl.float32)
        for row in range(begin // TILE_Q * TILE_Q, end, TILE_Q):
            rows = row + tl.arange(0, TILE_Q)
            lse, sums, sees = read_sums(LSE + head, SUMS + head, row, Q, TILE_Q)
            if DESCRIBED:
                query, grad = query_tiles.load([row - first_seeing, 0]), grad_tiles.load([row - first_seeing, 0])
            else:
                query, grad = read_queries(
                    query_rows, grad_rows, query_head, grad_head, sees, row, Q, D, V, TILE_Q, TILE_D, TILE_V)  # fmt: skip
            position = near(stands) + rows
            far, is_near = far_bias(start, near(stands) + row, near(stands) + row + TILE_Q - 1, h, bias, TILE_K)
            dot = tl.dot(key, tl.trans(query), input_precision="ieee")
            score, bent = scored(
                dot, rows[None], keys[:, None], position[None], b, h, Q, K, far, is_near, scores, bias)  # fmt: skip
            power = score - lse[None]
            first, last = seen_keys(rows, stands, b, Q, K, mask)
            if MASK_ALL or never_whole(mask) or (row < whole_from) | (row + TILE_Q > whole_to):
                here = shown(rows[None], keys[:, None], first[None], last[None], b, h, Q, K, mask)
                power = tl.where(here, power, float("-inf"))
            weights = tl.exp2(power)
            dot_value = tl.dot(value, tl.trans(grad), input_precision="ieee")
            dropped, slope, raw = pulled(
                weights, dot_value, sums[None], bent, rows[None], keys[:, None], start, b, h, scores, dropout)  # fmt: skip
            grad_value += tl.dot(dropped.to(grad.dtype), grad, input_precision="ieee")
            grad_key += tl.dot(raw.to(query.dtype), query, input_precision="ieee")
            if GRAD_QUERY is not None:
                part = tl.dot(tl.trans(raw.to(key.dtype)), key, input_precision="ieee") * scores.scale
                at = GRAD_QUERY + (head + rows[:, None]) * D + features[None]
                tl.atomic_add(at, part, mask=(rows[:, None] < Q) & (features[None] < D), sem="relaxed")
            if BIAS_SUMS is not None:
                more_before, more_after = beyond_ends(slope, keys[:, None], position[None], is_near, bias)
                before, after = before + more_before, after + more_after
        if BIAS_SUMS is not None:
            at = BIAS_SUMS + ((b * scores.H + h) * tiles + tile) * 2
            tl.store(at, tl.sum(before, 0))
            tl.store(at + 1, tl.sum(after, 0))
    write(grad_key_rows, head_of(grad_key_rows, b, g), start, K, D, grad_key * scores.scale, TILE_K, TILE_D)
    write(grad_value_rows, head_of(grad_value_rows, b, g), start, K, V, grad_value, TILE_K, TILE_V)


@triton.jit(do_not_specialize=["Q", "K", "offset"])
def queries(
    query_rows, key_rows, value_rows, grad_rows, LSE, SUMS, grad_query_rows, BIAS_SUMS, Q, K, offset, scores, mask, bias,
    dropout, D: tl.constexpr, V: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr, TILE_D: tl.constexpr,
    TILE_V: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """dq (B,H,Q,D): one tile of queries. BIAS_SUMS (B,H,tiles,2) may be asked for."""
    tiles = tl.cdiv(Q, TILE_Q)
    turn, b, h = of_program(tiles, scores.H)
    tile, g = tiles - 1 - turn, h // scores.group
    row = tile * TILE_Q
    rows = row + tl.arange(0, TILE_Q)
    head = (b * scores.H + h) * Q
    stands = offset_of(b, offset, mask)
    position = near(stands) + rows
    low, high = near(stands) + row, near(stands) + row + TILE_Q - 1
    first, last = seen_keys(rows, stands, b, Q, K, mask)
    begin, end, whole_from, whole_to = seen_by_tile(row, row + TILE_Q, stands, b, Q, K, mask, TILE_K)
    begin, end = narrowed_keys(begin, end, rows, b, Q, K, mask)
    begin = begin // TILE_K * TILE_K
    grad_query = tl.zeros([TILE_Q, TILE_D], tl.float32)
    before, after = tl.zeros([TILE_Q], tl.float32), tl.zeros([TILE_Q], tl.float32)
    key_head, value_head = head_of(key_rows, b, g), head_of(value_rows, b, g)
    if DESCRIBED:
        key_tiles = tl.make_tensor_descriptor(key_rows.at + key_head, [K, D], [key_rows.n, 1], [TILE_K, TILE_D])
        value_tiles = tl.make_tensor_descriptor(value_rows.at + value_head, [K, V], [value_rows.n, 1], [TILE_K, TILE_V])
    if begin < end:  # where ptxas sees that a loop has a step at least, it lets products overlap steps
        lse, sums, sees = read_sums(LSE + head, SUMS + head, row, Q, TILE_Q)
        query, grad = read_queries(
            query_rows, grad_rows, head_of(query_rows, b, h), head_of(grad_rows, b, h), sees, row, Q, D, V, TILE_Q, TILE_D,
            TILE_V)  # fmt: skip
        for start in range(begin, end, TILE_K):
            keys = start + tl.arange(0, TILE_K)
            key = key_tiles.load([start, 0]) if DESCRIBED else read(key_rows, key_head, start, K, D, TILE_K, TILE_D)
            value = value_tiles.load([start, 0]) if DESCRIBED else read(value_rows, value_head, start, K, V, TILE_K, TILE_V)
            is_whole = (start >= whole_from) & (start < whole_to)
            slope, raw, is_near = slopes(
                query, key, value, grad, lse, sums, is_whole, rows, keys, start, position, low, high, first, last, b, h, Q,
                K, scores, mask, bias, dropout, TILE_K)  # fmt: skip
            grad_query += tl.dot(raw.to(key.dtype), key, input_precision="ieee")
            if BIAS_SUMS is not None:
                more_before, more_after = beyond_ends(slope, keys[None], position[:, None], is_near, bias)
                before, after = before + more_before, after + more_after
    write(grad_query_rows, head_of(grad_query_rows, b, h), row, Q, D, grad_query * scores.scale, TILE_Q, TILE_D)
    if BIAS_SUMS is not None:
        at = BIAS_SUMS + ((b * scores.H + h) * tiles + tile) * 2
        tl.store(at, tl.sum(before, 0))
        tl.store(at + 1, tl.sum(after, 0))


@triton.jit
def slopes(
    query, key, value, grad, lse, sums, is_whole, rows, keys, start, position, low, high, first, last, b, h, Q, K, scores,
    mask, bias, dropout, TILE_K: tl.constexpr,
):  # fmt: skip
    """The gradients (M, N) of the scores, and so of a bias, and of scale q.k, for one tile that lies along keys; and whether it
    is near (see `far_bias`). A tile that is whole needs no mask."""
    far, is_near = far_bias(start, low, high, h, bias, TILE_K)
    dot = tl.dot(query, tl.trans(key), input_precision="ieee")
    dot_value = tl.dot(grad, tl.trans(value), input_precision="ieee")
    score, bent = scored(dot, rows[:, None], keys[None], position[:, None], b, h, Q, K, far, is_near, scores, bias)
    power = score - lse[:, None]
    if never_whole(mask) or not is_whole:
        here = shown(rows[:, None], keys[None], first[:, None], last[:, None], b, h, Q, K, mask)
        power = tl.where(here, power, float("-inf"))
    weights = tl.exp2(power)
    _, slope, raw = pulled(
        weights, dot_value, sums[:, None], bent, rows[:, None], keys[None], start, b, h, scores, dropout)  # fmt: skip
    return slope, raw, is_near
