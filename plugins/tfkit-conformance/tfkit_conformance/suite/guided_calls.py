"""Small calls of each feature and of several, calls near the numbers of the kernel's source, and calls with one size far out.

    plain     a small call of each feature alone, with gradients and without; every follow-up comes after it
    near      each number c of the source, and c - 1, c + 1, 2 c, 2 c + 1, as every size that a call has: lengths, batch, heads,
              groups, dims, rows of all heads, offsets, windows, lengths of rows, tables of distances, scale and softcap
    several   small calls with several features
    far       every such size drawn on a logarithmic scale up to its limit, one query with thousands of keys for instance

A call is near several numbers at once where it stays small. Most have further features, drawn at random. The smallest come
first, between the plain ones.
A kernel may change its path at any size. Fixed sizes find the paths at the sizes that we thought of; these find the others.

Of each call output, log-sum-exp and gradients are held to the bound (`call_maker.py`). Most are followed by other calls of the
same sizes, in which what a kernel keeps shows (`follow_ups.py`). Some come after the same call under inference_mode, some are
held to relations, beside another thread for instance. In some, memory that nobody wrote holds NaN. Some are made with dropout,
whose draw is read out.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import torch

from tfkit.inspection import BIAS_KINDS, MASK_TERMS, SCORE_SETTINGS
from tfkit.plugin import AttentionInputs

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.compare import leaves_of
from ..attention.elements import GRAD_LAYOUTS, LAYOUTS, REGIMES
from ..attention.evaluated import Evaluated
from ..finding import Inconclusive, Violation
from ..relations import fit
from ..relations.dropout import DROPOUT
from ..relations.gradients import GRADIENTS
from ..relations.modes import MODES
from ..relations.order import ORDER
from ..relations.relation import Relation
from ..source import Source
from .call_maker import CHECK, CallMaker, check_settings, memory_of_nan, torch_threads
from .follow_ups import First, follow, follow_by_all, weights_requested
from .layers import mask_tensors, process_settings
from .spellings import respelled

SUMMARY = "small calls, and those near numbers of the source or of unusual sizes, within the error bound; nothing else changes"
BUDGET = {"quick": 1_000, "standard": 4_000, "deep": 20_000}
"""So many calls near numbers of the source are made at most, and an eighth as many of unusual sizes; over all dtypes."""
ALONE = 0.8
"""The share of calls beside blocks that have no further feature: one can hide what another shows."""
BESIDE_PLAIN, GROUP = 4, 120
"""Other calls after each plain one, and how many are put in the order of their size."""
NEAR_FOR_FAR, SMALL_FOR_FAR = 3, 2
"""Calls near a number of the source, and small ones, that are made before one of an unusual size."""
MAX_TURNS = 4
"""Where there are few numbers, the calls near each are drawn anew so often."""
MAX_PAIRS = 250_000
"""The largest B * Q * K: the reference computes visibility key by key in Python."""
MAX_PRODUCTS = 12_000_000
"""The largest B * H * Q * K * (D + V)."""
MAX_REPEATED = 1_000_000
"""The largest such product of a call that is made again, and of one with two sizes far out: a larger one takes the time of many
others."""
MAX_THREADED = 50_000
"""The largest such product of a call with two threads of torch, which it does not use: larger ones wait for each other. Also of
one whose second derivatives are computed."""
MAX_READINGS = 16
"""A draw of dropout is read out by at most so many calls."""
WIDTHS = (16, 32, 64, 128, 256)
MIN_SETTING, MAX_SETTING = 1e-6, 1e4
EVERY = {"two_threads": 19, "backward_twice": 11, "checkpoint": 13, "one_draw_per_call": 6, "same_state_same_draw": 20,
         "no_part_repeats": 12, "weights_carry_gradients": 5, "deterministic_backward": 2, "batch_invariant": 1,
         "double_backward": 7}  # fmt: skip
_KNOWN = (*MODES, *ORDER, *GRADIENTS, *DROPOUT)
RELATIONS = tuple((relation, EVERY[relation.name]) for relation in _KNOWN if relation.name in EVERY)
"""Relations, each with a number n: one of n calls is held to it, and every plain call."""
HIDDEN_DRAWS = 3
"""How many times as often a call in which queries see only the last keys, or none, is held to a relation of dropout."""
SLOW = ("no_part_repeats", "checkpoint")
"""No plain call is held to these."""
PATTERNS = ("blocks", "gap", "prefix", "triangle")
DIFFERENT = 61
"""So many batch rows have lengths of their own; those after them have the same again."""
SMALL = 5
"""Numbers below are sizes that every draw has."""
MAX_BLOCK = 200
"""The largest size of a block beside which another one is drawn."""
BLOCK_ENDS = ((0, 0, 0), (0, 0, 2), (0, 0, 3), (1, 0, 0), (0, 1, 0), (1, 1, 2))
"""Queries and keys beyond whole blocks, and the divisor of the queries that are no padding; 0 for rows without lengths."""
MANY_KEYS = 1100
"""More than kernels split their keys at."""
MAX_ROWS = 4_200
"""Batch rows of a call with very many heads in all: some kernels call another one for each row."""
DECODED = 9
"""Rows of decoding."""
COMMON = (64, 128)
"""Sizes of blocks, for a source without numbers or none at all."""
MAX_TOGETHER, LOOK_AHEAD = 300_000, 60
"""The largest product of a call near several numbers, and how many of the next calls are tried for it."""

Sizes = Callable[[random.Random, int], dict[str, Any]]


@dataclass(frozen=True)
class Axis:
    """One size of a call: `sizes` gives the fields of a case in which it is a number, `most` is the largest that is drawn."""

    words: str
    most: int
    sizes: Sizes


def _exactly(**fields: Any) -> Axis:
    """These fields of a case, whatever the size."""
    return Axis("", 0, lambda draw, size: fields)


def _window(draw: random.Random, size: int) -> dict[str, Any]:
    window = draw.choice([(size, None), (None, size), (size, 0), (0, size), (size, size)])
    return {
        "window": window,
        "K": size + draw.randint(2, 9),
        "Q": draw.choice([1, 3, size + 5]),
        "offset": draw.randint(0, size),
    }


def _first_key(draw: random.Random, size: int) -> dict[str, Any]:
    """The first key that the first query sees, of few keys: each of them counts."""
    left = draw.randint(0, 20)
    window, K = (left, draw.choice([0, 5])), size + left + draw.randint(1, 40)
    return {"window": window, "offset": size + left, "K": K, "Q": draw.choice([1, 4])}


def _first_of_many_keys(draw: random.Random, size: int) -> dict[str, Any]:
    """The first key of a wide window."""
    left = draw.randint(100, 600)
    return {"window": (left, 0), "offset": size + left, "K": size + left + draw.randint(1, 9), "Q": 1}


def _last_key(draw: random.Random, size: int) -> dict[str, Any]:
    """The last key that the last query sees."""
    queries = draw.choice([1, 4])
    return {"causal": True, "offset": size - queries + 1, "K": size + draw.randint(1, 40), "Q": queries}


def _far_edge(draw: random.Random, size: int) -> dict[str, Any]:
    """The last keys of very many, which one query sees."""
    return {"window": (draw.randint(0, 9), 0), "offset": size, "K": size + draw.randint(1, 9), "Q": 1}


def _blind(draw: random.Random, size: int) -> dict[str, Any]:
    """The first queries see no key."""
    return {"causal": True, "offset": -size, "Q": size + draw.randint(1, 9), "K": draw.randint(2, 9)}


def _far(draw: random.Random, size: int) -> dict[str, Any]:
    """Positions that float32, 32 bits, or float64 do not hold. Slopes times distances beyond 2^31 are left out."""
    power, sign = draw.choice([24, 24, 31, 32, 61]), draw.choice([1, 1, -1])
    offset = sign * ((1 << power) + draw.choice([1, -1]) * size)
    bias = draw.choice(["linear", "distance"]) if power == 24 else "distance"
    table = {"bias_low": -offset - 6, "bias_values": 16} if draw.random() < 0.5 else {}  # the distances are in its middle
    return {"offset": offset, "bias": bias, "causal": sign > 0, "K": 9, **table}


def _rows(draw: random.Random, size: int) -> dict[str, Any]:
    fits = [heads for heads in (3, 17, 64, 255) if heads <= max(3, size // 4) and size <= MAX_ROWS * heads]
    heads = draw.choice(fits)
    return {"H": heads, "G": heads, "B": -(-size // heads), "Q": 1, "K": 2}


def _rows_of_a_key_head(draw: random.Random, size: int) -> dict[str, Any]:
    heads = draw.choice([3, 8, 40])
    return {"G": 1, "H": heads, "B": 1, "Q": -(-size // heads), "K": 2}


def _scores(draw: random.Random, size: int) -> dict[str, Any]:
    """Of all heads. Beside one query row less they may be computed at once."""
    heads = draw.choice([3, 8])
    side = max(1, round((size / heads) ** 0.5))
    return {"B": 1, "H": heads, "G": heads, "K": side, "Q": -(-size // (heads * side)), "bias": "dense", "bias_axes": "HQK"}


def _lengths(draw: random.Random, size: int) -> dict[str, Any]:
    K = size + draw.randint(1, 12)
    return {"B": 2, "K": K, "key_lengths": (size, draw.randint(1, K)), "Q": draw.choice([1, 2, 6])}


def _table(draw: random.Random, size: int) -> dict[str, Any]:
    return {"bias": "distance", "bias_values": size, "bias_low": -draw.randint(0, size), "K": min(size + 3, 400), "Q": 3}


AXES = (
    Axis("key length", 8300, lambda draw, size: {"K": size, "Q": draw.randint(1, 3)}),
    Axis("query length", 1100, lambda draw, size: {"Q": size, "K": draw.randint(2, 9)}),
    Axis("query and key length", 420, lambda draw, size: {"Q": size, "K": size}),
    Axis("key length of several queries", 2100, lambda draw, size: {"K": size, "Q": draw.choice([4, 8, 16])}),
    Axis("query length beside many keys", 220, lambda draw, size: {"Q": size, "K": draw.choice([130, 1030, 1100])}),
    Axis("batch size", 600, lambda draw, size: {"B": size}),
    Axis("number of heads", 300, lambda draw, size: {"H": size, "G": size}),
    Axis("number of key heads", 70, lambda draw, size: {"G": size, "H": size * draw.choice([2, 3])}),
    Axis("number of query heads", 70, lambda draw, size: {"G": draw.choice([1, 2, 3]), "H": size}),
    Axis("batch size times heads", 70_000, _rows),
    Axis("query rows of a key head", 40_000, _rows_of_a_key_head),
    Axis(
        "queries times keys",
        200_000,
        lambda draw, size: {"Q": max(1, round(size**0.5)), "K": -(-size // max(1, round(size**0.5)))},
    ),
    Axis("number of scores", 1_300_000, _scores),
    Axis("head dim", 580, lambda draw, size: {"D": size, "V": size}),
    Axis("value dim", 580, lambda draw, size: {"V": size}),
    Axis("dim of queries and keys alone", 580, lambda draw, size: {"D": size}),
    Axis("first visible key", 420, _first_key),
    Axis("first key of a wide window", 420, _first_of_many_keys),
    Axis("last visible key", 420, _last_key),
    Axis("queries before the first key", 600, _blind),
    Axis("far position", 8, _far),
    Axis("offset", 1 << 25, lambda draw, size: {"offset": size * draw.choice([1, 1, -1]), "K": draw.randint(2, 40)}),
    Axis("window", 600, _window),
    Axis("visible keys of a row", 600, _lengths),
    Axis("number of distances", 700, _table),
)


FAR_AXES = (*AXES, Axis("edge of very many keys", 80_000, _far_edge))
EDGES = ("first visible key", "first key of a wide window", "last visible key")
DIVIDED = ("key length", "query length", "batch size", "number of heads", "head dim")
"""The axes along which most kernels divide their work."""


def guided_calls(subject: BackendUnderTest, dtypes: Sequence[str], profile: str, seed: int) -> Iterator[tuple[str, Case]]:
    """What is particular to a call in words, and the call, in any of the dtypes."""
    if not dtypes:
        return
    drawn = _small_first(_drawn_calls(subject, dtypes, profile, seed))
    for words, case in plain_calls(subject, dtypes):
        yield words, case
        yield from islice(drawn, BESIDE_PLAIN)
    yield from drawn


def _small_first(calls: Iterator[tuple[str, Case]]) -> Iterator[tuple[str, Case]]:
    """The calls in groups, the smallest of a group first: most faults show in them, and the largest take most of the time."""
    while group := list(islice(calls, GROUP)):
        yield from sorted(group, key=lambda call: _products(call[1]))


def _drawn_calls(subject: BackendUnderTest, dtypes: Sequence[str], profile: str, seed: int) -> Iterator[tuple[str, Case]]:
    """Calls near numbers of the source and of unusual sizes, side by side: a slow kernel does not get to the end."""
    draw = random.Random(f"{seed} {' '.join(dtypes)}")
    budget = BUDGET[profile]
    near = [*_near_integers(subject.source), *_near_floats(subject.source)]
    near = draw.sample(near[:budget], min(len(near), budget)) * max(1, min(MAX_TURNS, budget // max(1, len(near))))
    first = [*_beside_blocks(subject.source), *_decoding(subject.source), *_beside_many_keys(subject.source),
             *_blocks(subject.source)]  # fmt: skip
    later, near = len(near), [*first, *near]
    far = [(turn, axis) for turn in range(budget // 8 // len(FAR_AXES) + 1) for axis in FAR_AXES]
    for number, (words, case) in enumerate(plain_calls(subject, dtypes)):
        yield f"{words}, in another form", replace(case, seed=case.seed + 1 + number)
    while near or far:
        for _ in range(NEAR_FOR_FAR if far else len(near)):
            alone = len(near) > later and draw.random() < ALONE
            together = _taken(near, draw)
            called = list(_called(subject, draw.choice(dtypes), draw, together, alone)) if len(together) > 1 else []
            for one in () if called else together:
                called.extend(_called(subject, draw.choice(dtypes), draw, [one], alone))
            yield from called
        for _ in range(SMALL_FOR_FAR if far else 0):
            yield from _called(subject, draw.choice(dtypes), draw, [("several features", {})])
        for turn, axis in far[:1]:  # near the limit first
            size = round(axis.most * draw.uniform(0.85, 1) if turn % 2 == 0 else axis.most ** draw.random())
            yield from _called(subject, draw.choice(dtypes), draw, [(f"{axis.words} {size:,}", axis.sizes(draw, size))])
        far = far[1:]


def _taken(near: list[tuple[str, Axis, int]], draw: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """Takes the next size from the list, if there is one, and in most cases later ones that the same small call can have."""
    if not near:
        return []
    words, axis, size = near.pop(0)
    taken = [(words, fields := axis.sizes(draw, size))]
    place = 0 if near and draw.random() < 0.75 else LOOK_AHEAD
    while place < min(len(near), LOOK_AHEAD):
        words, axis, size = near[place]
        more = axis.sizes(draw, size)
        together = fields | more
        if fields.keys() & more.keys() or _products(_sized(Case(), together)) > MAX_TOGETHER:
            place += 1
            continue
        fields = together
        taken.append((words, more))
        del near[place]
    return taken


def plain_calls(subject: BackendUnderTest, dtypes: Sequence[str]) -> Iterator[tuple[str, Case]]:
    """A small call of each feature that is declared, in turn in each dtype; with gradients and without."""
    can = subject.capabilities
    dims = [dim for dim in (8, 16, 32, 64, 128, 256) if can.head_dim and dim in can.head_dim]
    D = dims[0] if dims else can.head_dim.minimum if can.head_dim else 1
    row = Case(B=2, H=2, G=2, Q=3, K=5, D=D, V=D, dtype=dtypes[0], seed=1)
    features: dict[str, dict[str, Any]] = {
        "no feature": {},
        "one query": {"Q": 1},
        "shared heads": {"H": 6, "G": 2},
        "causal": {"causal": True, "offset": 1},
        "a step of decoding": {"Q": 1, "causal": True, "offset": 4},
        "queries before the first key": {"causal": True, "offset": -1},
        "offsets of rows": {"causal": True, "offset": (2, 0)},
        "a window": {"window": (2, 1), "offset": 2},
        "a window to the last key": {"window": (2, None), "offset": 2},
        "lengths": {"key_lengths": (2, 5), "query_lengths": (3, 1)},
        "a row without keys": {"key_lengths": (0, 5)},
        "padding": {"key_visible": "coins"},
        "one tensor of lengths": {"Q": 5, "key_lengths": (2, 5), "query_lengths": (2, 5), "shared_lengths": True},
        "segments": {"segments": 2},
        "sorted segments": {"Q": 5, "segments": 3, "segment_pattern": "sorted"},
        "visible": {"visible": "HQK"},
        "a triangle as visible": {"Q": 10, "K": 13, "visible": "QK", "visible_pattern": "triangle"},
        "a dense bias": {"bias": "dense", "bias_axes": "HQK"},
        "a bias of one number": {"bias": "dense", "bias_axes": ""},
        "a linear bias": {"H": 4, "G": 4, "bias": "linear", "offset": 2},
        "a distance bias": {"bias": "distance", "bias_values": 6, "offset": 2},
        **{setting.words: {setting.name: 0.5} for setting in SCORE_SETTINGS},
        "weights": {"weights": True, "lse": can.lse},
    }
    for number, (words, feature) in enumerate(features.items()):
        case = replace(row, dtype=dtypes[number % len(dtypes)], **feature)
        biased = case.bias in can.bias_gradient
        for tried in (replace(case, gradients=can.backward, bias_gradient=biased), replace(case, gradients=False)):
            if subject.accepts(tried.request(subject.device)):
                yield f"{words} alone{'' if tried.gradients else ', without gradients'}", tried


def _near_integers(source: Source) -> Iterator[tuple[str, Axis, int]]:
    for number in _numbers(source):
        for size in (number - 1, number, number + 1, 2 * number, 2 * number + 1):
            for axis in AXES:
                if size <= 4 * axis.most:
                    near = f", near {number:,} of the source" if number in source.integers else ""
                    yield f"{axis.words} {size:,}{near}", axis, size


def _numbers(source: Source) -> list[int]:
    return [number for number in source.integers if number >= SMALL] or list(COMMON)


def _blocks(source: Source) -> Iterator[tuple[str, Axis, int]]:
    """Queries and keys of whole blocks of the two largest sizes, with lengths and without, and one element beyond."""
    sizes = sorted(number for number in _numbers(source) if number <= MAX_BLOCK)[-2:]
    for rows, columns, (more_rows, more_columns, lengths) in product(sizes, sizes, BLOCK_ENDS):
        Q, K = rows * (1 + columns % 2) + more_rows, columns * (1 + rows % 3) + more_columns
        ends = {"query_lengths": (Q // lengths,), "key_lengths": (K - 1,)} if lengths else {}
        yield f"{Q} queries and {K} keys, in blocks of {rows} and {columns}", _exactly(Q=Q, K=K, B=1, **ends), 0


def _beside_blocks(source: Source) -> Iterator[tuple[str, Axis, int]]:
    """One element after a block and after two blocks, on the axes along which kernels divide their work; visible keys that
    begin or end with a block, and one before."""
    beyond = {size for number in _numbers(source) for size in (number + 1, 2 * number + 1)}
    at_edges = {size for number in _numbers(source) for size in (number - 1, number)}
    for words, axis, size in _near_integers(source):
        tried = beyond if axis.words in DIVIDED else at_edges if axis.words in EDGES else ()
        if size in tried and size <= axis.most:
            yield words, axis, size


def _beside_many_keys(source: Source) -> Iterator[tuple[str, Axis, int]]:
    """A few queries, and one more than two blocks of them, beside keys of many blocks."""
    block = max([number for number in _numbers(source) if number <= MAX_BLOCK], default=COMMON[0])
    window: dict[str, Any] = {"window": (MANY_KEYS // 4, MANY_KEYS // 8), "offset": MANY_KEYS // 2}
    masks: dict[int, tuple[dict[str, Any], ...]] = {
        1: ({}, {"causal": True, "offset": MANY_KEYS - 1}),
        4: ({}, {"visible": "Q"}, {"causal": True, "offset": MANY_KEYS - 4}),
        9: (window, {"visible": "HQK"}),
        min(2 * block + 1, 200): ({}, window, {"causal": True, "offset": MANY_KEYS - 2 * block}),
    }
    for queries, fields in [(queries, mask) for queries, some in masks.items() for mask in some]:
        yield f"{queries} queries and {MANY_KEYS:,} keys", _exactly(Q=queries, K=MANY_KEYS, B=1, **fields), 0


def _decoding(source: Source) -> Iterator[tuple[str, Axis, int]]:
    """One query for each of several rows, whose lengths or positions are far apart, beside keys of more than two blocks."""
    for block in sorted(number for number in _numbers(source) if number <= 4 * MAX_BLOCK)[-2:]:
        K = 2 * block + 1
        apart = tuple(K * (row + 1) // DECODED - 1 for row in range(DECODED))
        masks: tuple[dict[str, Any], ...] = ({}, {"key_lengths": apart}, {"causal": True, "offset": apart},
                                             {"window": (block // 2, 0), "offset": apart})  # fmt: skip
        for mask in masks:
            yield f"{DECODED} rows of one query and {K:,} keys", _exactly(Q=1, K=K, B=DECODED, **mask), 0


def _near_floats(source: Source) -> Iterator[tuple[str, Axis, int]]:
    """As settings of the scores, and so that a quotient by a setting is the number. Rates of dropout are drawn where a draw is
    read out."""
    for number in source.floats:
        for value in (number * 0.999, number, number * 1.001, 0.9 / number, 1.1 / number):
            if not MIN_SETTING < value < MAX_SETTING:
                continue
            for name in ("scale", *(setting.name for setting in SCORE_SETTINGS)):
                yield f"{name} {value:g}, near {number:g} of the source", _exactly(**{name: value}), 0


def _called(
    subject: BackendUnderTest,
    dtype: str,
    draw: random.Random,
    together: Sequence[tuple[str, dict[str, Any]]],
    alone: bool = False,
) -> Iterator[tuple[str, Case]]:
    """The call with these sizes, and unless `alone` with further features; nothing where the declaration takes none."""
    G = draw.randint(1, 3)
    dims = [dim for dim in (8, 16, 32, 64, 128, 256) if subject.capabilities.head_dim and dim in subject.capabilities.head_dim]
    least = subject.capabilities.head_dim.minimum if subject.capabilities.head_dim else 1
    D = dims[0] if dims else least
    few = Case(B=draw.choice([1, 2, 2]), H=G, G=G, Q=draw.choice([1, draw.randint(1, 9), draw.randint(1, 9)]),
               K=draw.randint(2, 20), D=D, V=D, dtype=dtype, seed=draw.randrange(1 << 16))  # fmt: skip
    sharing = draw.randint(2, 12) if subject.capabilities.grouped_queries and draw.random() < 0.4 else 1
    many = replace(few, B=draw.randint(3, 20) if draw.random() < 0.3 else few.B, H=sharing * G)
    sizes: dict[str, Any] = {}
    for _, fields in together:
        sizes |= fields
    also: dict[str, Any] = {}
    for other in draw.sample(AXES, 1 if sizes else 2) if len(together) == 1 and draw.random() < 0.5 else ():
        known = [number for number in subject.source.integers if number < other.most]
        near = draw.choice(known) * draw.choice([1, 1, 2]) + draw.randint(-1, 1) if known and draw.random() < 0.5 else None
        also |= other.sizes(draw, near or round(other.most ** draw.random()))
    most = max(MAX_REPEATED, _products(_sized(few, sizes)))
    tries = (_sized(plain, more | sizes) for more in (also, {}) for plain in (many, few, replace(few, D=least, V=least)))
    sized = next((case for case in tries if _affordable(case) and _products(case) <= most), None)
    if sized is None:
        return
    gradients = subject.capabilities.backward
    varied = () if alone else (_varied(sized, subject, draw), _varied(sized, subject, draw))
    for tried in (*varied, sized, replace(sized, bias=None)):
        for case in (replace(tried, gradients=gradients), replace(tried, gradients=False, bias_gradient=False)):
            if subject.accepts(case.request(subject.device)):
                yield " and ".join(words for words, _ in together), case
                return


def _sized(case: Case, sizes: dict[str, Any]) -> Case:
    """The case with these sizes, whose query heads are a multiple of the others, and whose rows all have a length."""
    sized = replace(case, **sizes)
    G = max(1, sized.G)
    lengths = (
        None if sized.key_lengths is None else tuple(sized.key_lengths[row % len(sized.key_lengths)] for row in range(sized.B))
    )
    sizes = {axis: max(1, getattr(sized, axis)) for axis in "BQKDV"}
    return replace(sized, G=G, H=G * max(1, sized.H // G), key_lengths=lengths, **sizes)


def _affordable(case: Case) -> bool:
    return case.B * case.Q * case.K <= MAX_PAIRS and _products(case) <= MAX_PRODUCTS


def _products(case: Case) -> int:
    return case.B * case.H * case.Q * case.K * (case.D + case.V)


def _varied(case: Case, subject: BackendUnderTest, draw: random.Random) -> Case:
    """The case with features of the declaration beside those that it has."""
    can = subject.capabilities
    more: dict[str, Any] = {}

    def some(share: float) -> bool:
        return draw.random() < share

    def lengths(longest: int) -> tuple[int, ...]:
        some = [draw.choice([0, longest, longest - 1, draw.randint(-1, longest + 1)]) for _ in range(min(case.B, DIFFERENT))]
        if case.seed % 3 == 0:  # the last row is longer than all others
            some = [*[case.seed % (longest // 2 + 1)] * (case.B - 1), longest]
        return tuple(some[row % len(some)] for row in range(case.B))

    for term in MASK_TERMS:
        if term not in can.mask_terms or getattr(case, term) not in (None, False) or not some(0.25):
            continue
        if term in ("key_lengths", "query_lengths"):
            more[term] = lengths(case.K if term == "key_lengths" else case.Q)
            continue
        left = draw.choice([None, 0, 3, case.K // 2])
        more[term] = {
            "causal": True,
            "window": draw.choice([(left, draw.choice([0, 1, case.K // 3])), (left or 0, None)]),
            "key_visible": draw.choice(["right", "left", "coins"]),
            "segments": draw.choice([1, 2, 3, draw.randint(4, 40)]),
            "visible": draw.choice(["BHQK", "QK", _axes(draw)]),
        }[term]
        if term in ("segments", "visible") and some(0.6):
            more |= {"segment_pattern": "sorted"} if term == "segments" else {"visible_pattern": draw.choice(PATTERNS)}
    if case.Q == case.K and {"key_lengths", "query_lengths"} <= {*more} and some(0.5):
        more |= {"query_lengths": more["key_lengths"], "shared_lengths": True}
    kinds = [kind for kind in BIAS_KINDS if kind in can.bias_kinds]
    if case.bias is None and kinds and some(0.45):
        more |= {"bias": draw.choice(kinds), "bias_axes": draw.choice(["BHQK", _axes(draw)])}
        more |= {"bias_values": draw.randint(1, 40), "bias_low": draw.randint(-30, 2)}
    bias = more.get("bias", case.bias)
    if bias is not None:
        more |= {"bias_dtype": draw.choice(["float32", "query"]) if bias != "linear" else "float32"}
        more |= {"bias_gradient": bias in can.bias_gradient and some(0.7)}
    moved = bool({"causal", "window"} & ({*more} | case.terms())) or bias in ("linear", "distance")
    if case.offset is None and moved:
        starts = [0, case.K - case.Q, draw.randint(-3, case.K + 2)]
        rows = can.tensor_offset and some(0.3)
        each_row = tuple(starts[(row + case.seed) % 3] + row // 3 for row in range(case.B))
        more |= {"offset": each_row if rows else draw.choice(starts)}
    elif isinstance(case.offset, int) and can.tensor_offset and some(0.3):
        side = draw.choice([1, -1])  # the first row keeps its position, and is the first or the last of all
        more |= {"offset": tuple(case.offset + side * draw.choice([0, 1, 7, case.K // 2]) * (row > 0) for row in range(case.B))}
    if case.scale is None and some(0.25):
        not_above_zero = [-0.5, 0.0] * (subject.kernel is None)  # functions of torch give NaN for it beside a causal flag
        more |= {"scale": draw.choice([0.02, 0.3, 1.0, 2.0, *not_above_zero])}
    for setting in SCORE_SETTINGS:
        if setting.declared(can) and getattr(case, setting.name) is None and some(0.2):
            more |= {setting.name: draw.choice([0.1, 0.5, 3.0, 50.0, 10 ** draw.uniform(-5, 3), *setting.examples])}
    more |= {"lse": can.lse and some(0.3), "weights": can.weights != "none" and some(0.15)}
    more |= {"regime": draw.choice(REGIMES) if some(0.25) else case.regime}
    more |= {"layout": draw.choice(LAYOUTS) if some(0.3) else case.layout}
    more |= {"grad_layout": draw.choice(GRAD_LAYOUTS) if some(0.3) else case.grad_layout}
    return replace(case, **more)


def _axes(draw: random.Random) -> str:
    """Along any of the axes; along none now and then."""
    return "".join(axis for axis in "BHQK" if draw.random() < 0.5)


class Guided:
    """Makes the calls of a run one after another, with what follows each."""

    def __init__(self, subject: BackendUnderTest) -> None:
        self.subject, self.maker = subject, CallMaker(subject)
        self.plain = {case for dtype in subject.capabilities.dtypes for _, case in plain_calls(subject, (dtype,))}

    def check(self, case: Case) -> float:
        """The largest error of a call, and of those that follow it, as a share of its bound. Raises Violation, Inconclusive."""
        draw, alive, settings = random.Random(case.seed), dict[str, Any](), process_settings()
        worst = self._followed(case, draw, alive)
        self._check_released(alive)
        check_settings(settings, " in a call or those that follow it")
        hides = case.window is not None or (isinstance(case.offset, int) and case.offset < 0)  # whole tiles, with their coins
        for relation, one_in in RELATIONS if _products(case) <= MAX_REPEATED else ():
            often = HIDDEN_DRAWS if hides and relation in DROPOUT else 1
            if relation.name not in SLOW if case in self.plain else draw.randrange(one_in) < often:
                worst = max(worst, self._related(relation, case))
                check_settings(settings, f" in calls of the relation {relation.name}")
        return worst

    def _followed(self, case: Case, draw: random.Random, alive: dict[str, Any]) -> float:
        sent = case.grad_output(self.subject.device)
        plain = case in self.plain

        def spelt(other: Case) -> AttentionInputs:
            inputs = other.inputs(self.subject.device)
            return inputs if plain else respelled(inputs, random.Random(case.seed), self.subject)

        inputs = spelt(case)
        first = First(self.maker, case, inputs, sent, self.maker.reference(inputs, sent), draw, spelt)
        alive |= {name: weakref.ref(leaf) for name, leaf in leaves_of(inputs).items()}
        alive |= {f"mask {tuple(term.shape)}": weakref.ref(term) for term in mask_tensors(inputs.mask)}
        threads = 2 if draw.randrange(4) == 0 and _products(case) < MAX_THREADED else torch.get_num_threads()
        inference = plain or case.seed % 5 == 2
        with torch_threads(threads), memory_of_nan() if draw.randrange(3) or plain else nullcontext():
            if inference:
                with torch.inference_mode():
                    self.maker.run(inputs)
            worst = first.again(" after the same call under inference_mode" * inference)
        number = (_products(case) <= MAX_REPEATED) + (_products(case) <= MAX_THREADED)
        if number:
            weights_requested(first)
        return max(worst, follow_by_all(first) if plain else follow(first, number))

    def _check_released(self, alive: dict[str, Any]) -> None:
        """No tensor of the calls is kept alive."""
        if any(tensor() is not None for tensor in alive.values()):
            gc.collect()  # slow, and only for what refers to itself
        for name, tensor in alive.items():
            if tensor() is not None:
                raise Violation(CHECK, f"the {name} of an earlier call is kept alive")

    def _readable(self, case: Case) -> Case:
        """The case with values so wide that few calls read its draw out, where the declaration takes them."""
        for V in (width for width in WIDTHS if width > case.V) if case.K > MAX_READINGS * case.V else ():
            for D in (case.D, V):
                wide = replace(case, V=V, D=D)
                if case.K <= MAX_READINGS * V and self.subject.accepts(wide.request(self.subject.device)):
                    return wide
        return case

    def _related(self, relation: Relation, case: Case) -> float:
        """A relation, where it applies to the call."""
        adapted = fit(relation, self.subject, case)
        if isinstance(adapted, str):
            return 0.0
        if adapted.dropout:
            adapted = self._readable(adapted)
        one_hot = adapted.B * adapted.H * adapted.Q * adapted.K * (adapted.D + adapted.K)
        read = relation.name == "no_part_repeats" or adapted.K <= MAX_READINGS * adapted.V
        if not read if adapted.dropout else one_hot > MAX_PRODUCTS:
            return 0.0
        if relation.name == "double_backward" and _products(adapted) > MAX_THREADED:
            return 0.0
        self.maker.last = {}
        try:
            return relation.run(Evaluated(self.subject, adapted)) or 0.0
        except Inconclusive:  # of this relation alone
            return 0.0
        except Violation as violation:
            raise type(violation)(CHECK, f"{relation.name}: {violation.message}", **violation.numbers) from violation
