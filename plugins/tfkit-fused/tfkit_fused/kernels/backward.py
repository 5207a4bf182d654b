"""Backward in two kernels, one that walks along queries for keys and values, one that walks along keys for queries; or in the
first alone, which adds to the gradients of queries on its way.

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

from .tile import LOG2_E, head_of, is_worthwhile, positions, pulled, read, scored, seen_keys, seen_queries, shown, write


@triton.jit(do_not_specialize=["Q"])
def row_sums(output_rows, grad_rows, GRAD_LSE, LSE, SUMS, H, Q, V: tl.constexpr, TILE_Q: tl.constexpr, TILE_V: tl.constexpr):
    """sums (B,H,Q) float32: dO . O - dlse, 0 in rows that see no key."""
    tiles = tl.cdiv(Q, TILE_Q)
    start = tl.program_id(0) % tiles * TILE_Q
    head = (tl.program_id(0) // tiles).to(tl.int64)
    b, h = head // H, head % H
    rows = start + tl.arange(0, TILE_Q)
    output = read(output_rows, head_of(output_rows, b, h), start, Q, V, TILE_Q, TILE_V).to(tl.float32)
    grad = read(grad_rows, head_of(grad_rows, b, h), start, Q, V, TILE_Q, TILE_V).to(tl.float32)
    sums = tl.sum(output * grad, 1)
    if GRAD_LSE is not None:
        sums -= tl.load(GRAD_LSE + head * Q + rows, mask=rows < Q, other=0.0)
    lse = tl.load(LSE + head * Q + rows, mask=rows < Q, other=float("-inf"))
    tl.store(SUMS + head * Q + rows, tl.where(lse != float("-inf"), sums, 0.0), mask=rows < Q)


@triton.jit
def read_queries(
    query_rows, grad_rows, query_head, grad_head, LSE, SUMS, start, Q, D: tl.constexpr, V: tl.constexpr,
    TILE_Q: tl.constexpr, TILE_D: tl.constexpr, TILE_V: tl.constexpr,
):  # fmt: skip
    """A tile of one head's queries with the gradients of their outputs, log-sum-exps (units of log2(e)), row sums, and whether
    they see a key; those that see none are 0 throughout."""
    rows = start + tl.arange(0, TILE_Q)
    lse = tl.load(LSE + rows, mask=rows < Q, other=float("-inf"))
    sees = lse != float("-inf")
    sums = tl.load(SUMS + rows, mask=rows < Q, other=0.0)
    query = tl.where(sees[:, None], read(query_rows, query_head, start, Q, D, TILE_Q, TILE_D), 0.0)
    grad = tl.where(sees[:, None], read(grad_rows, grad_head, start, Q, V, TILE_Q, TILE_V), 0.0)
    return query, grad, tl.where(sees, lse * LOG2_E, 0.0), sums, sees


@triton.jit(do_not_specialize=["Q", "K", "offset"])
def keys_and_values(
    query_rows, key_rows, value_rows, grad_rows, LSE, SUMS, grad_key_rows, grad_value_rows, GRAD_QUERY, Q, K, offset,
    scores, mask, bias, dropout, D: tl.constexpr, V: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
    TILE_D: tl.constexpr, TILE_V: tl.constexpr,
):  # fmt: skip
    """dk (B,G,K,D) and dv (B,G,K,V): one tile of keys, all query heads that read it. Where there is a GRAD_QUERY (B,H,Q,D),
    float32 and contiguous, the tile's part of dq is added to it."""
    tiles = tl.cdiv(K, TILE_K)
    start = tl.program_id(0) % tiles * TILE_K
    pair = (tl.program_id(0) // tiles).to(tl.int64)
    groups = scores.H // scores.group
    b, g = pair // groups, pair % groups
    keys, features = start + tl.arange(0, TILE_K), tl.arange(0, TILE_D)
    key = read(key_rows, head_of(key_rows, b, g), start, K, D, TILE_K, TILE_D)
    value = read(value_rows, head_of(value_rows, b, g), start, K, V, TILE_K, TILE_V)
    grad_key = tl.zeros([TILE_K, TILE_D], tl.float32)
    grad_value = tl.zeros([TILE_K, TILE_V], tl.float32)
    begin, end = seen_queries(start, tl.minimum(start + TILE_K, K), b, Q, offset, mask)
    for member in range(scores.group):
        h = g * scores.group + member
        head = (b * scores.H + h) * Q
        query_head, grad_head = head_of(query_rows, b, h), head_of(grad_rows, b, h)
        for row in range(begin // TILE_Q * TILE_Q, end, TILE_Q):
            rows = row + tl.arange(0, TILE_Q)
            if is_worthwhile(rows, keys, b, Q, K, mask):
                query, grad, lse, sums, sees = read_queries(
                    query_rows, grad_rows, query_head, grad_head, LSE + head, SUMS + head, row, Q, D, V, TILE_Q,
                    TILE_D, TILE_V)  # fmt: skip
                position = positions(rows, b, offset, mask)
                first, last = seen_keys(rows, position, b, Q, K, mask)
                dot = tl.dot(key, tl.trans(query), input_precision="ieee")
                score, bent = scored(dot, rows[None], keys[:, None], position[None], b, h, Q, K, scores, bias)
                here = sees[None] & shown(rows[None], keys[:, None], first[None], last[None], b, h, Q, K, mask)
                weights = tl.exp2(tl.where(here, score - lse[None], float("-inf")))
                dot_value = tl.dot(value, tl.trans(grad), input_precision="ieee")
                dropped, _, raw = pulled(
                    weights, dot_value, sums[None], bent, rows[None], keys[:, None], b, h, scores, dropout)  # fmt: skip
                grad_value += tl.dot(dropped.to(grad.dtype), grad, input_precision="ieee")
                grad_key += tl.dot(raw.to(query.dtype), query, input_precision="ieee")
                if GRAD_QUERY is not None:
                    part = tl.dot(tl.trans(raw.to(key.dtype)), key, input_precision="ieee") * scores.scale
                    at = GRAD_QUERY + (head + rows[:, None]) * D + features[None]
                    tl.atomic_add(at, part, mask=(rows[:, None] < Q) & (features[None] < D), sem="relaxed")
    write(grad_key_rows, head_of(grad_key_rows, b, g), start, K, D, grad_key * scores.scale, TILE_K, TILE_D)
    write(grad_value_rows, head_of(grad_value_rows, b, g), start, K, V, grad_value, TILE_K, TILE_V)


@triton.jit(do_not_specialize=["Q", "K", "offset"])
def queries(
    query_rows, key_rows, value_rows, grad_rows, LSE, SUMS, grad_query_rows, Q, K, offset, scores, mask, bias, dropout,
    D: tl.constexpr, V: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr, TILE_D: tl.constexpr, TILE_V: tl.constexpr,
):  # fmt: skip
    """dq (B,H,Q,D): one tile of queries."""
    tiles = tl.cdiv(Q, TILE_Q)
    row = (tiles - 1 - tl.program_id(0) % tiles) * TILE_Q
    pair = (tl.program_id(0) // tiles).to(tl.int64)
    b, h = pair // scores.H, pair % scores.H
    g = h // scores.group
    rows = row + tl.arange(0, TILE_Q)
    head = (b * scores.H + h) * Q
    query, grad, lse, sums, sees = read_queries(
        query_rows, grad_rows, head_of(query_rows, b, h), head_of(grad_rows, b, h), LSE + head, SUMS + head, row, Q,
        D, V, TILE_Q, TILE_D, TILE_V)  # fmt: skip
    position = positions(rows, b, offset, mask)
    first, last = seen_keys(rows, position, b, Q, K, mask)
    grad_query = tl.zeros([TILE_Q, TILE_D], tl.float32)
    for start in range(tl.min(first, 0) // TILE_K * TILE_K, tl.max(last, 0), TILE_K):
        keys = start + tl.arange(0, TILE_K)
        if is_worthwhile(rows, keys, b, Q, K, mask):
            key = read(key_rows, head_of(key_rows, b, g), start, K, D, TILE_K, TILE_D)
            value = read(value_rows, head_of(value_rows, b, g), start, K, V, TILE_K, TILE_V)
            _, raw = slopes(
                query, key, value, grad, lse, sums, sees, rows, keys, position, first, last, b, h, Q, K, scores,
                mask, bias, dropout)  # fmt: skip
            grad_query += tl.dot(raw.to(key.dtype), key, input_precision="ieee")
    write(grad_query_rows, head_of(grad_query_rows, b, h), row, Q, D, grad_query * scores.scale, TILE_Q, TILE_D)


@triton.jit
def slopes(
    query, key, value, grad, lse, sums, sees, rows, keys, position, first, last, b, h, Q, K, scores, mask, bias, dropout
):
    """The gradients (M, N) of the scores, and so of a bias, and of scale q.k, for one tile that lies along keys."""
    dot = tl.dot(query, tl.trans(key), input_precision="ieee")
    score, bent = scored(dot, rows[:, None], keys[None], position[:, None], b, h, Q, K, scores, bias)
    here = sees[:, None] & shown(rows[:, None], keys[None], first[:, None], last[:, None], b, h, Q, K, mask)
    weights = tl.exp2(tl.where(here, score - lse[:, None], float("-inf")))
    dot_value = tl.dot(grad, tl.trans(value), input_precision="ieee")
    _, slope, raw = pulled(weights, dot_value, sums[:, None], bent, rows[:, None], keys[None], b, h, scores, dropout)
    return slope, raw
