"""Forward for few queries against many keys: a head's keys are split among programs, whose results are then put together.

    program s:   o_s = sum_j 2^(s_j - m_s) v_j / l_s,   lse_s = m_s + log2 l_s          over its chunk of the keys
    together:    lse = log2 sum_s 2^lse_s,              o = sum_s 2^(lse_s - lse) o_s

(Dao, Haziza, Massa, Sizov 2023, https://pytorch.org/blog/flash-decoding/). All query heads that read one key/value head are
rows of one tile, so that its keys are read once. Chunks have a fixed size: what else is in the batch changes no bit. Keys that
are one chunk need no second step: o and lse go where they belong.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .forward import sweep
from .tile import LN_2, head_of, near, of_program, offset_of, seen_by_tile, seen_keys


@triton.jit(do_not_specialize=["Q", "K", "offset", "chunks"])
def decode_chunks(
    query_rows, key_rows, value_rows, output_rows, OUTPUTS, LSES, Q, K, offset, chunks, scores, mask, bias, dropout,
    D: tl.constexpr, V: tl.constexpr, CHUNK: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
    TILE_D: tl.constexpr, TILE_V: tl.constexpr,
):  # fmt: skip
    """outputs (B,H,Q,chunks,V) and log-sum-exps (B,H,Q,chunks) in units of log2(e), float32; -inf where nothing is seen.
    Without OUTPUTS: output (B,H,Q,V), from the one chunk that there is, and its natural log-sum-exp (B,H,Q)."""
    chunk, b, g = of_program(chunks, scores.H // scores.group)
    packed = tl.arange(0, TILE_Q)
    rows = packed % Q
    there = packed < Q * scores.group
    heads = g * scores.group + tl.where(there, packed // Q, 0)
    rows = tl.where(there, rows, Q)
    stands = offset_of(b, offset, mask)
    position = near(stands) + rows
    first, last = seen_keys(rows, stands, b, Q, K, mask)
    from_key, to_key = chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, K)
    begin, end, whole_from, whole_to = seen_by_tile(0, Q, stands, b, Q, K, mask, TILE_K)
    begin, end = tl.maximum(begin, from_key), tl.minimum(end, to_key)

    features, value_features = tl.arange(0, TILE_D), tl.arange(0, TILE_V)
    at = query_rows.at + b * query_rows.b + heads[:, None] * query_rows.h + rows[:, None] * query_rows.n
    query = tl.load(at + features[None] * query_rows.d, mask=there[:, None] & (features[None] < D), other=0.0)
    total, weight, highest = sweep(
        tl.zeros([TILE_Q, TILE_V], tl.float32), tl.zeros([TILE_Q], tl.float32), tl.full([TILE_Q], float("-inf"), tl.float32),
        query, key_rows, value_rows, head_of(key_rows, b, g), head_of(value_rows, b, g), begin, end, whole_from, whole_to,
        rows, position, near(stands), near(stands) + Q - 1, first, last, b, heads[:, None], Q, K, scores, mask, bias,
        dropout, D, V, TILE_K, TILE_D, TILE_V, False)  # fmt: skip

    sees = (first < K) & (weight != 0.0)  # padding gathers something in tiles that are not masked
    output = total / tl.where(sees, weight, 1.0)[:, None]
    store = there[:, None] & (value_features[None] < V)
    lse = tl.where(sees, highest + tl.log2(tl.where(sees, weight, 1.0)), float("-inf"))
    place = (b * scores.H + heads) * Q + rows
    if OUTPUTS is None:
        if dropout.seed is not None:
            output = output * dropout.surviving
        output = tl.where(sees[:, None], output, 0.0)
        at = output_rows.at + b * output_rows.b + heads[:, None] * output_rows.h + rows[:, None] * output_rows.n
        at = at + value_features[None] * output_rows.d
        tl.store(at, output.to(output_rows.at.dtype.element_ty), mask=store)
        tl.store(LSES + place, lse * LN_2, mask=there)
    else:
        place = place * chunks + chunk
        tl.store(OUTPUTS + place[:, None] * V + value_features[None], output, mask=store)
        tl.store(LSES + place, lse, mask=there)


@triton.jit(do_not_specialize=["Q", "chunks"])
def join_chunks(
    OUTPUTS,
    LSES,
    output_rows,
    LSE,
    Q,
    chunks,
    scores,
    mask,
    bias,
    dropout,
    V: tl.constexpr,
    CHUNKS: tl.constexpr,
    TILE_V: tl.constexpr,
):
    """output (B,H,Q,V) and the natural log-sum-exp (B,H,Q) of one query of one head from those of its chunks."""
    program = tl.program_id(0).to(tl.int64)
    row, b, h = of_program(Q, scores.H)
    features = tl.arange(0, TILE_V)
    total, weight, highest = tl.zeros([TILE_V], tl.float32), 0.0, float("-inf")
    for start in range(0, chunks, CHUNKS):
        steps = start + tl.arange(0, CHUNKS)
        lses = tl.load(LSES + program * chunks + steps, mask=steps < chunks, other=float("-inf"))
        higher = tl.maximum(highest, tl.max(lses, 0))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        shares = tl.exp2(lses - level)
        at = OUTPUTS + (program * chunks + steps[:, None]) * V + features[None]
        outputs = tl.load(at, mask=(steps[:, None] < chunks) & (features[None] < V), other=0.0)
        shrink = tl.exp2(highest - level)
        total = total * shrink + tl.sum(outputs * shares[:, None], 0)
        weight = weight * shrink + tl.sum(shares, 0)
        highest = higher
    sees = weight != 0.0
    output = tl.where(sees, total / tl.where(sees, weight, 1.0), 0.0)
    if dropout.seed is not None:
        output = output * dropout.surviving
    at = output_rows.at + b * output_rows.b + h * output_rows.h + row * output_rows.n + features * output_rows.d
    tl.store(at, output.to(output_rows.at.dtype.element_ty), mask=features < V)
    tl.store(LSE + program, tl.where(sees, (highest + tl.log2(tl.where(sees, weight, 1.0))) * LN_2, float("-inf")))
