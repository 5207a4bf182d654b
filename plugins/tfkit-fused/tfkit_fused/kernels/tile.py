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
"""Where query 0 stands is clamped to this, so that positions and distances fit 32 bits."""
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LARGE = tl.constexpr((1 << 63) - 1)


@triton.jit
def of_program(tiles, heads):
    """(tile, batch row, head) of the running program, the last two int64, where each head of each row has so many tiles. They
    are divided before they are widened: a division of 64 bits branches.
    """
    pair = tl.program_id(0) // tiles
    return tl.program_id(0) % tiles, (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)


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
def offset_of(b, offset, mask):
    """Where query 0 of a batch row stands, int64."""
    if mask.offsets is not None:
        return tl.load(mask.offsets + b).to(tl.int64)
    return b * 0 + offset


@triton.jit
def near(position):
    return tl.minimum(tl.maximum(position, -FAR), FAR).to(tl.int32)


@triton.jit
def longest(b, K, mask):
    """How many of the K keys a batch row has."""
    length = K
    if mask.key_lengths is not None:
        length = tl.minimum(K, near(tl.load(mask.key_lengths + b).to(tl.int64)))
    return length


@triton.jit
def seen_keys(rows, stands, b, Q, K, mask):
    """The interval [first, last) of keys that each query may see by its position and the lengths, where query 0 stands at
    `stands`. Where the query is padding it is [K, 0)."""
    first = rows * 0
    last = first + longest(b, K, mask)
    if mask.right is not None:
        last = tl.minimum(last, rows + near(stands + mask.right + 1))
    if mask.left is not None:
        first = tl.maximum(first, rows + near(stands - mask.left))
    real = rows < Q
    if mask.query_lengths is not None:
        real = real & (rows < tl.load(mask.query_lengths + b))
    return tl.where(real, tl.minimum(first, K), K), tl.where(real, tl.maximum(last, 0), 0)


@triton.jit
def seen_queries(start, stop, b, Q, offset, mask):
    """The interval [first, last) of queries that may see one of the keys [start, stop). Query 0 stands at `offset`."""
    first = offset * 0
    last = first + Q
    if mask.query_lengths is not None:
        last = tl.minimum(last, tl.load(mask.query_lengths + b).to(tl.int64))
    if mask.right is not None:
        first = tl.maximum(first, tl.cast(start, tl.int64) - mask.right - offset)
    if mask.left is not None:
        last = tl.minimum(last, tl.cast(stop, tl.int64) + mask.left - offset)
    if mask.key_lengths is not None:
        last = tl.where(start < tl.load(mask.key_lengths + b), last, 0)
    return tl.minimum(first, Q).to(tl.int32), tl.maximum(last, 0).to(tl.int32)


@triton.jit
def whole_queries(start, stop, b, Q, K, offset, mask):
    """The interval [first, last) of queries that see all keys [start, stop), padding aside, which takes no part."""
    first = offset * 0
    last = tl.where(stop <= K, first + Q, 0)
    if mask.right is not None:
        first = tl.maximum(first, tl.cast(stop, tl.int64) - 1 - mask.right - offset)
    if mask.left is not None:
        last = tl.minimum(last, tl.cast(start, tl.int64) + mask.left - offset + 1)
    if mask.key_lengths is not None:
        last = tl.where(stop <= tl.load(mask.key_lengths + b), last, 0)
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
def never_whole(mask):
    """Whether the mask has terms that are no interval of keys: then every tile is masked. A constant of the program."""
    return mask.key_visible is not None or mask.query_segments is not None or mask.visible is not None


@triton.jit
def narrowed_keys(begin, end, rows, b, Q, K, mask, SCAN: tl.constexpr = 512):
    """The least interval [first, last) with all keys of [begin, end) that some query of `rows` (M,) may see by visibility and
    segments."""
    if mask.key_visible is None and mask.query_segments is None:
        return begin, end
    lowest, highest = LARGE, -LARGE
    if mask.query_segments is not None:
        of_query = mask.query_segments + b * mask.query_segments_b + rows.to(tl.int64) * mask.query_segments_q
        segments = tl.load(of_query, mask=rows < Q, other=0).to(tl.int64)
        lowest, highest = tl.min(tl.where(rows < Q, segments, LARGE), 0), tl.max(tl.where(rows < Q, segments, -LARGE), 0)
    first, last = end, begin
    for start in range(begin, end, SCAN):
        keys = start + tl.arange(0, SCAN)
        some = keys < end
        if mask.key_visible is not None:
            at = mask.key_visible + b * mask.key_visible_b + keys.to(tl.int64) * mask.key_visible_k
            some = some & (tl.load(at, mask=keys < K, other=0) != 0)
        if mask.query_segments is not None:
            of_key = mask.key_segments + b * mask.key_segments_b + keys.to(tl.int64) * mask.key_segments_k
            segment = tl.load(of_key, mask=keys < K, other=0).to(tl.int64)
            some = some & (segment >= lowest) & (segment <= highest)
        first = tl.minimum(first, tl.min(tl.where(some, keys, end), 0))
        last = tl.maximum(last, tl.max(tl.where(some, keys + 1, begin), 0))
    return first, last


@triton.jit
def narrowed_queries(begin, end, keys, b, Q, K, mask, SCAN: tl.constexpr = 512):
    """The same of the queries that may see some of `keys` (N,)."""
    if mask.key_visible is not None:
        at = mask.key_visible + b * mask.key_visible_b + keys.to(tl.int64) * mask.key_visible_k
        some_key = tl.max(tl.load(at, mask=keys < K, other=0).to(tl.int32), 0) != 0
        end = tl.where(some_key, end, begin)
    first, last = begin, end
    if mask.query_segments is not None:
        of_key = mask.key_segments + b * mask.key_segments_b + keys.to(tl.int64) * mask.key_segments_k
        segments = tl.load(of_key, mask=keys < K, other=0).to(tl.int64)
        lowest, highest = tl.min(tl.where(keys < K, segments, LARGE), 0), tl.max(tl.where(keys < K, segments, -LARGE), 0)
        first, last = end, begin
        for start in range(begin, end, SCAN):
            rows = start + tl.arange(0, SCAN)
            of_query = mask.query_segments + b * mask.query_segments_b + rows.to(tl.int64) * mask.query_segments_q
            segment = tl.load(of_query, mask=rows < Q, other=0).to(tl.int64)
            some = (rows < end) & (segment >= lowest) & (segment <= highest)
            first = tl.minimum(first, tl.min(tl.where(some, rows, end), 0))
            last = tl.maximum(last, tl.max(tl.where(some, rows + 1, begin), 0))
    return first, last


@triton.jit
def seen_by_tile(start, stop, stands, b, Q, K, mask, TILE_K: tl.constexpr):
    """(begin, end, whole_from, whole_to) of the keys that a tile sees, by position and the lengths: no query of [start, stop)
    sees a key outside of [begin, end), and every one, padding aside, sees all of the tiles [whole_from, whole_to), which need
    no mask. `begin` is a multiple of TILE_K; where no key is seen it may lie behind `end`.

    Neither end of `seen_keys` falls with the query, padding aside, so that the first query and the last decide. Numbers, not
    tiles of numbers: a reduction would put barriers before the loop, and its bounds into registers of threads.
    """
    last_row = tl.minimum(stop, Q) - 1
    if mask.query_lengths is not None:
        last_row = tl.minimum(last_row, near(tl.load(mask.query_lengths + b).to(tl.int64)) - 1)
    begin, last_of_all = seen_keys(start, stands, b, Q, K, mask)
    first_of_all, end = seen_keys(tl.maximum(last_row, start), stands, b, Q, K, mask)
    whole_from, whole_to = whole_tiles(begin, end, first_of_all, last_of_all, TILE_K)
    return begin // TILE_K * TILE_K, end, whole_from, whole_to


@triton.jit
def whole_tiles(begin, end, first, last, TILE_K: tl.constexpr):
    """Of the tiles of keys in [begin, end), those [from, to) that lie within [first, last)."""
    start = tl.minimum(tl.maximum(tl.cdiv(first, TILE_K) * TILE_K, begin), tl.maximum(end, begin))
    stop = tl.minimum(tl.maximum(last // TILE_K * TILE_K, start), tl.maximum(end, start))
    return start, stop


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
def far_bias(start, lowest, highest, h, bias, TILE_K: tl.constexpr):
    """(bias of the pairs of a tile whose distance is beyond a table's ends, whether the tile has other pairs).

    The tile has the keys from `start` on, and queries at positions `lowest` to `highest`. Most tiles of a long call with T5's
    biases have one bias, so that they need no look-up.
    """
    value, is_near = 0.0, True
    if bias.kind == "distance":
        beyond = start - highest >= bias.low + bias.size - 1
        value = tl.load(bias.at + h * bias.h + tl.where(beyond, bias.size - 1, 0).to(tl.int64) * bias.k).to(tl.float32)
        is_near = (not beyond) & (start + TILE_K - 1 - lowest > bias.low)
    return value, is_near


@triton.jit
def scored(dot, rows, keys, position, b, h, Q, K, far, is_near, scores, bias):
    """(scores in units of log2(e), tanh of the capped ones): softcap tanh(scale dot / softcap) + bias. `far` and `is_near` are
    what `far_bias` says of the tile."""
    score = dot * (scores.scale * LOG2_E)
    bent = score
    if scores.softcap is not None:
        bent = tanh(dot * (scores.scale / scores.softcap))
        score = bent * (scores.softcap * LOG2_E)
    if bias.kind == "dense":
        at = bias.at + b * bias.b + h * bias.h + rows.to(tl.int64) * bias.q + keys.to(tl.int64) * bias.k
        score += tl.load(at, mask=(rows < Q) & (keys < K), other=0.0).to(tl.float32) * LOG2_E
    if bias.kind == "linear":
        slope = tl.load(bias.at + h * bias.h).to(tl.float32) * LOG2_E
        score -= slope * tl.abs(keys.to(tl.float32) - position.to(tl.float32))  # keys are below 2^24: exact as float32
    if bias.kind == "distance":
        values = score * 0.0 + far * LOG2_E
        if is_near:
            place = tl.minimum(tl.maximum(keys - position - bias.low, 0), bias.size - 1)
            values = looked_up(bias.at + h * bias.h + place.to(tl.int64) * bias.k).to(tl.float32) * LOG2_E
        score += values
    return score, bent


@triton.jit
def looked_up(at):
    """The numbers at a tile of addresses, which few cache lines hold.

    Not `tl.load`: Triton would lay its result out for memory, and then carry the scores to that layout and back.
    """
    if INTERPRETED:
        numbers = tl.load(at)
    elif at.dtype.element_ty.primitive_bitwidth == 32:
        numbers = tl.inline_asm_elementwise(
            "ld.global.nc.b32 $0, [$1];", "=r,l", [at.to(tl.int64)], dtype=at.dtype.element_ty, is_pure=True, pack=1
        )
    else:
        numbers = tl.inline_asm_elementwise(
            "ld.global.nc.b16 $0, [$1];", "=h,l", [at.to(tl.int64)], dtype=at.dtype.element_ty, is_pure=True, pack=1
        )
    return numbers


@triton.jit
def kept(rows, keys, start, b, h, H, dropout):
    """Which weights dropout keeps: Philox (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405; 7 rounds pass their
    tests) counted by key, query and head, so that a weight's draw depends on nothing else. `start` is the first of the keys.

    A count gives four words, to the keys j, j + 8 and the queries i, i + 8: in a tensor core's layout of scores, in either
    orientation, one thread has all four. The compiler sees that counts are equal where only constants decide on it: hence
    `step`, which it knows, beside `start`, a multiple of 16.
    """
    zero = (rows + keys) * 0
    step, query = zero + keys - start, (zero + rows).to(tl.uint32)
    key = ((start >> 1) + (step >> 4 << 3 | step & 7)).to(tl.uint32)
    head = (zero + (b * H + h).to(tl.int32)).to(tl.uint32)
    drawn = tl.philox(tl.load(dropout.seed), key, query >> 4 << 3 | query & 7, head, zero.to(tl.uint32), 7)
    of_low = tl.where((step & 8) == 0, drawn[0], drawn[1])
    of_high = tl.where((step & 8) == 0, drawn[2], drawn[3])
    return (tl.where((query & 8) == 0, of_low, of_high) >> 1).to(tl.int32) >= dropout.threshold


@triton.jit
def pulled(weights, dot_value, sums, bent, rows, keys, start, b, h, scores, dropout):
    """From the weights P before dropout and dO . v: (P after dropout, the gradients of the scores, and so of a bias, and of
    scale q.k)."""
    dropped = weights
    if dropout.seed is not None:
        keep = kept(rows, keys, start, b, h, scores.H, dropout)
        dropped = weights * tl.where(keep, dropout.surviving, 0.0)
        dot_value = tl.where(keep, dot_value * dropout.surviving, 0.0)
    slope = tl.where(weights != 0.0, weights * (dot_value - sums), 0.0)
    raw = slope
    if scores.softcap is not None:
        raw = slope * (1.0 - bent * bent)
    return dropped, slope, raw
