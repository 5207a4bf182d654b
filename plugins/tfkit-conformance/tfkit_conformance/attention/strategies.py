"""Hypothesis strategies of attention calls, drawn from a declaration: only calls that the backend declares are drawn.

    @given(cases(subject, "bfloat16"))
    def test_mine(case): ...

Structure and a seed are drawn, never elements. Simple comes first, so that a failure shrinks to few keys and one feature.
Lengths are block sizes of kernels (multiples of 16 from 16 to 256), one less or one more; B, H, D, V and the lengths
differ where they can, so that a swapped axis fails, and Q = K in a third of the cases, for the fast paths of square calls.

Hypothesis inspects a strategy when it first draws from it, so those that many cases draw from are made once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tfkit.inspection import BIAS_KINDS, MASK_TERMS, SCORE_SETTINGS
from tfkit.plugin import Range

from .backend_under_test import BackendUnderTest
from .case import Case
from .cells import Cell, Plan, edge_of, first_from
from .elements import GRAD_LAYOUTS, LAYOUTS, REGIMES

HEAD_DIMS = (8, 16, 32, 24, 64, 40, 12, 20, 48, 80, 96, 128, 256)
MOST_PAIRS = 12_000
"""The largest B * Q * K: the reference computes visibility key by key in Python."""

BLOCKS = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256)


@st.composite
def cases(draw: DrawFn, subject: BackendUnderTest, dtype: str, cell: Cell | None = None, gradients: bool | None = None) -> Case:
    """Draws calls that the declaration of a backend accepts.

    Args:
        subject: the backend.
        dtype: of query, key and value.
        cell: the cell of the declaration that the calls must be in; any by default.
        gradients: whether the calls require gradients; by default they do where a backward is declared.

    Returns:
        A Hypothesis strategy of `Case`.
    """
    can, fixed = subject.capabilities, dict(cell.fixed) if cell else {}
    assert can.query_length is not None
    assert can.key_length is not None
    terms = _terms(draw, subject, fixed)
    Q, K = _lengths(draw, can.query_length, can.key_length, fixed)
    bias = fixed["bias"] if "bias" in fixed else draw(_one_of(None, None, *_kinds(subject)))
    B = draw(st.integers(1, max(1, min(3, MOST_PAIRS // (Q * K)))))
    G, heads = _heads(draw, subject, fixed, B)
    D, V = _dims(draw, subject, fixed)
    Q, K = _distinct(Q, K, {B, G, G * heads, D, V}, can.query_length, can.key_length, fixed)
    near = bool({"causal", "window"} & terms) or bias in ("linear", "distance")
    tensor = fixed["tensor_offset"] if "tensor_offset" in fixed else can.tensor_offset and near and draw(st.booleans())
    wants = can.backward if gradients is None else gradients
    shared = "key_lengths" in terms and "query_lengths" in terms and Q == K and draw(st.booleans())
    key_lengths = _row_lengths(draw, B, K) if "key_lengths" in terms else None
    query_lengths = _row_lengths(draw, B, Q) if "query_lengths" in terms else None
    case = Case(
        B=B, H=G * heads, G=G, Q=Q, K=K, D=D, V=V, dtype=dtype,
        causal="causal" in terms,
        window=draw(_windows()) if "window" in terms else None,
        offset=_offset(draw, B, Q, K, tensor) if near or draw(st.booleans()) else None,
        key_lengths=key_lengths,
        query_lengths=key_lengths if shared else query_lengths,
        shared_lengths=shared,
        key_visible=draw(_one_of("right", "left", "coins")) if "key_visible" in terms else None,
        segments=draw(st.integers(1, 3)) if "segments" in terms else None,
        visible=draw(_one_of("BHQK", "HK", "Q.K", "BQ", "BK", "HQ", "BQK", "H")) if "visible" in terms else None,
        bias=bias,
        bias_axes=draw(_one_of("BHQK", "HQK", "BK", "Q.K", "H", "QK")) if bias == "dense" else "BHQK",
        bias_values=draw(st.integers(1, 9)) if bias == "distance" else 5,
        bias_low=draw(st.integers(-6, 2)) if bias == "distance" else -3,
        bias_dtype="query" if bias in ("dense", "distance") and draw(st.booleans()) else "float32",
        **{
            setting.name: draw(_one_of(*setting.examples))
            for setting in SCORE_SETTINGS
            if _has(draw, fixed, setting.name, setting.declared(can), 5)
        },
        scale=draw(_one_of(None, None, None, 0.3, 1.0)),
        lse=_has(draw, fixed, "lse", can.lse, 3),
        weights=_has(draw, fixed, "weights", can.weights != "none", 3),
        gradients=fixed.get("gradients", wants) and can.backward,
        regime=_one(draw, fixed, "regime", REGIMES),
        layout=_one(draw, fixed, "layout", LAYOUTS),
        grad_layout=_one(draw, fixed, "grad_layout", GRAD_LAYOUTS),
        seed=draw(st.integers(0, 2**16)),
    )  # fmt: skip
    return case if bias is None else _with_bias_gradient(draw, subject, case, fixed)


def _terms(draw: DrawFn, subject: BackendUnderTest, fixed: Plan) -> frozenset[str]:
    if "terms" in fixed:
        return frozenset(fixed["terms"])
    known = [term for term in MASK_TERMS if term in subject.capabilities.mask_terms]
    if fixed.get("tensor_offset") and fixed.get("bias") is None:
        known = [term for term in known if term in ("causal", "window")]
    return frozenset(draw(_several_of(*known))) if known else frozenset()


def _kinds(subject: BackendUnderTest) -> list[str]:
    return [kind for kind in BIAS_KINDS if kind in subject.capabilities.bias_kinds]


def _has(draw: DrawFn, fixed: Plan, name: str, able: bool, one_in: int) -> bool:
    if name in fixed:
        return bool(fixed[name])
    return able and draw(st.integers(0, one_in - 1)) == one_in - 1


def _one(draw: DrawFn, fixed: Plan, name: str, choices: tuple[str, ...]) -> Any:
    """One of the choices: the plain first one in half of the cases."""
    return fixed[name] if name in fixed else draw(_one_of(*choices[:1] * len(choices), *choices[1:]))


def _with_bias_gradient(draw: DrawFn, subject: BackendUnderTest, case: Case, fixed: Plan) -> Case:
    able = case.bias in subject.capabilities.bias_gradient and case.gradients
    return replace(
        case, bias_gradient=bool(fixed["bias_gradient"]) if "bias_gradient" in fixed else able and draw(st.booleans())
    )


def _allowed(lengths: list[int], allowed: Range) -> list[int]:
    fitting = [length for length in lengths if length in allowed]
    return fitting or [allowed.minimum + (-allowed.minimum) % allowed.multiple]


@lru_cache(maxsize=1024)
def _length(allowed: Range, longest: int) -> SearchStrategy[int]:
    small = _allowed(list(range(1, 14)), allowed)
    edges = _allowed([K for block in BLOCKS for K in (block - 1, block, block + 1) if longest >= K], allowed)
    return st.one_of(st.sampled_from(small), st.sampled_from(small), st.sampled_from(edges))


@lru_cache(maxsize=1024)
def _lengths_at(edge: str, allowed: Range) -> SearchStrategy[int]:
    return st.sampled_from([K for K in _allowed(list(range(15, 258)), allowed) if edge_of(K) == edge])


def _lengths(draw: DrawFn, queries: Range, keys: Range, fixed: Plan) -> tuple[int, int]:
    shape, edge = fixed.get("shape"), fixed.get("edge")
    lengths = _length(keys, 257) if edge is None else _lengths_at(edge, keys)
    K = 1 if edge is None and shape == "K = 1" else draw(lengths)
    if shape == "Q = 1":
        return 1, K if K > 1 else first_from(2, keys) or K
    if shape == "Q = K" or (shape is None and draw(st.integers(0, 2)) == 2):
        near = K if K <= 100 else draw(_one_of(63, 64, 65, 80, 95, 96, 97))
        fits = near > 1 and near in queries and near in keys
        square = near if fits else first_from(2, queries, keys)
        if square is not None and (edge is None or square == K):
            return square, square
    Q = draw(_length(queries, max(13, min(130, MOST_PAIRS // K))))
    if shape == "Q < K" and not 1 < Q < K:
        Q, K = _ordered(queries, keys, K)
    if shape == "Q > K" and not 1 < K < Q:
        K, Q = _ordered(keys, queries, min(Q, 40))
    return Q, K


def _ordered(low: Range, high: Range, near: int) -> tuple[int, int]:
    """Two lengths, the first below the second and above 1."""
    for least in (max(2, near // 2), 2):
        small = first_from(least, low)
        large = None if small is None else first_from(small + 1, high)
        if small is not None and large is not None:
            return small, large
    raise AssertionError("no lengths are in this cell")


def _distinct(Q: int, K: int, taken: set[int], queries: Range, keys: Range, fixed: Plan) -> tuple[int, int]:
    """The lengths, moved off the other sizes where that changes no class of them."""
    if "edge" in fixed or min(Q, K) == 1:
        return Q, K
    if Q == K:
        while Q in taken and Q + 1 in queries and Q + 1 in keys:
            Q += 1
        return Q, Q
    low, high = min(Q, K), max(Q, K)
    while high in taken and high + 1 in (keys if high == K else queries):
        high += 1
    while low in taken and low + 1 < high and low + 1 in (queries if K > Q else keys):
        low += 1
    return (low, high) if Q < K else (high, low)


def _heads(draw: DrawFn, subject: BackendUnderTest, fixed: Plan, B: int) -> tuple[int, int]:
    """(G, H // G)."""
    kinds = ["own", "shared", "one"] if subject.capabilities.grouped_queries else ["own"]
    kind = fixed["heads"] if "heads" in fixed else draw(_one_of(*kinds))
    if kind == "one":
        return 1, draw(_one_of(2, 4))
    if kind == "shared":
        return draw(_one_of(2, 3)), draw(_one_of(2, 3))
    return draw(_one_of(1, 4 if B > 1 else 2, 5)), 1


def _dims(draw: DrawFn, subject: BackendUnderTest, fixed: Plan) -> tuple[int, int]:
    allowed = subject.capabilities.head_dim
    assert allowed is not None
    dims = _allowed(list(HEAD_DIMS), allowed)
    short = dims[:6]
    D = draw(_dim(tuple(short), tuple(dims)))
    differs = (
        fixed["value_dim"]
        if "value_dim" in fixed
        else (subject.capabilities.value_dim_differs and draw(st.integers(0, 3)) == 3)
    )
    others = [dim for dim in short if dim != D]
    return (D, draw(_one_of(*others))) if differs and others else (D, D)


def _offset(draw: DrawFn, B: int, Q: int, K: int, tensor: bool) -> int | tuple[int, ...]:
    one = _start(Q, K)
    return tuple(draw(one) for _ in range(B)) if tensor else draw(one)


@lru_cache(maxsize=1024)
def _start(Q: int, K: int) -> SearchStrategy[int]:
    return st.one_of(st.just(0), st.just(K - Q), st.integers(-3, K + 2))


@cache
def _windows() -> SearchStrategy[tuple[int | None, int | None]]:
    side = st.one_of(st.none(), st.integers(0, 6), st.sampled_from([15, 16, 31, 64]))
    return st.tuples(side, side).filter(lambda window: window != (None, None))


def _row_lengths(draw: DrawFn, B: int, length: int) -> tuple[int, ...]:
    """One length per batch row; out of range means the clamped length, 0 hides everything."""
    return tuple(draw(_row_length(length)) for _ in range(B))


@lru_cache(maxsize=1024)
def _row_length(length: int) -> SearchStrategy[int]:
    return st.one_of(st.integers(1, length), st.integers(-1, length + 2))


@lru_cache(maxsize=1024)
def _dim(short: tuple[int, ...], dims: tuple[int, ...]) -> SearchStrategy[int]:
    return st.one_of(st.sampled_from(short), st.sampled_from(dims))


@lru_cache(maxsize=1024, typed=True)
def _one_of(*choices: Any) -> SearchStrategy[Any]:
    return st.sampled_from(choices)


@lru_cache(maxsize=1024)
def _several_of(*choices: str) -> SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(choices), unique=True, max_size=3)
