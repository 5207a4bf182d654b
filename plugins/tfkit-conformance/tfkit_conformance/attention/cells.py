"""The cells of a declaration, each of which a run must exercise: every mask term alone and in pairs, every bias alone and
with every mask term, every shape and every feature. A declared cell without an example makes a run INCOMPLETE.

A cell fixes some entries of a case's plan (`plan_of`); an example is in the cell if its plan has these entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from tfkit.inspection import BIAS_KINDS, MASK_TERMS, SCORE_SETTINGS
from tfkit.plugin import Capabilities, Range

from .case import Case
from .elements import GRAD_LAYOUTS, LAYOUTS, REGIMES

Plan = dict[str, Any]
SHAPES = ("Q = 1", "Q < K", "Q > K", "Q = K", "K = 1")


@dataclass(frozen=True)
class Cell:
    """`fixed` is what an example must have: entries of `plan_of`."""

    group: str
    name: str
    fixed: tuple[tuple[str, Any], ...]

    def meets(self, plan: Plan) -> bool:
        return all(plan[key] == value for key, value in self.fixed)


def plan_of(case: Case) -> Plan:
    """The features of a case, by the names that cells and strategies use."""
    return {
        "terms": case.terms(),
        "bias": case.bias,
        "bias_gradient": case.bias_gradient,
        "tensor_offset": isinstance(case.offset, tuple),
        "shape": shape_of(case.Q, case.K),
        "edge": edge_of(case.K),
        "heads": "own" if case.G == case.H else "one" if case.G == 1 else "shared",
        "value_dim": case.V != case.D,
        **{name: value is not None for name, value in case.score_settings().items()},
        "lse": case.lse,
        "weights": case.weights,
        "gradients": case.gradients,
        "regime": case.regime,
        "layout": case.layout,
        "grad_layout": case.grad_layout,
    }


def shape_of(Q: int, K: int) -> str:
    """The class of a pair of lengths; the rarest name that fits."""
    if K == 1:
        return "K = 1"
    if Q == 1:
        return "Q = 1"
    return "Q = K" if Q == K else "Q < K" if Q < K else "Q > K"


def edge_of(K: int) -> str:
    """The class of a key length relative to the block sizes of kernels: a multiple of 16 from 16 to 256, one less, one more."""
    if 15 <= K <= 257:
        for name, length in (("block", K), ("block - 1", K + 1), ("block + 1", K - 1)):
            if length % 16 == 0:
                return name
    return "between"


def cells(can: Capabilities, gradients: bool) -> list[Cell]:
    """The cells of a declaration, in report order. `gradients`: whether there is a backward here."""
    terms = [term for term in MASK_TERMS if term in can.mask_terms]
    kinds = [kind for kind in BIAS_KINDS if kind in can.bias_kinds]
    declared = [Cell("mask", "no mask", _fixed(terms=frozenset(), bias=None))]
    declared += [Cell("mask", term, _fixed(terms=frozenset({term}), bias=None)) for term in terms]
    declared += [
        Cell("mask pair", f"{one} + {other}", _fixed(terms=frozenset({one, other}), bias=None))
        for one, other in combinations(terms, 2)
    ]
    for kind in kinds:
        declared.append(Cell("bias", kind, _fixed(terms=frozenset(), bias=kind)))
        if gradients and kind in can.bias_gradient:
            declared.append(Cell("bias", f"gradient of a {kind} bias", _fixed(bias=kind, bias_gradient=True)))
        declared += [Cell("bias + mask", f"{kind} + {term}", _fixed(terms=frozenset({term}), bias=kind)) for term in terms]
    if can.tensor_offset:
        declared += [
            Cell("offset per row", term, _fixed(terms=frozenset({term}), tensor_offset=True))
            for term in terms
            if term in ("causal", "window")
        ]
        declared += [
            Cell("offset per row", f"{kind} bias", _fixed(bias=kind, tensor_offset=True))
            for kind in kinds
            if kind in ("linear", "distance")
        ]
    declared += [Cell("shape", shape, _fixed(shape=shape)) for shape in SHAPES if _possible(shape, can)]
    if "causal" in can.mask_terms:
        declared += [
            Cell("shape", f"{shape}, causal", _fixed(shape=shape, terms=frozenset({"causal"})))
            for shape in ("Q = 1", "Q = K")
            if _possible(shape, can)
        ]
    if can.key_length is not None and (can.key_length.maximum or 257) >= 257:
        declared += [Cell("shape", f"K = {edge}", _fixed(edge=edge)) for edge in _edges(can)]
    if can.grouped_queries:
        declared += [
            Cell("heads", "some heads share", _fixed(heads="shared")),
            Cell("heads", "all share one", _fixed(heads="one")),
        ]
    if can.value_dim_differs:
        declared.append(Cell("heads", "V != D", _fixed(value_dim=True)))
    for name in [setting.name for setting in SCORE_SETTINGS if setting.declared(can)]:
        declared.append(Cell("feature", name, _fixed(**{name: True}, bias=None)))
        declared += [Cell("feature", f"{name} + {kind} bias", _fixed(**{name: True}, bias=kind)) for kind in kinds]
    if can.lse:
        declared.append(Cell("feature", "lse", _fixed(lse=True)))
    if can.weights != "none":
        declared.append(Cell("feature", "weights", _fixed(weights=True)))
    declared += [Cell("numbers", regime, _fixed(regime=regime)) for regime in REGIMES]
    declared += [Cell("memory", layout, _fixed(layout=layout)) for layout in LAYOUTS]
    if gradients:
        declared += [
            Cell("memory", f"{layout} output gradient", _fixed(grad_layout=layout, gradients=True)) for layout in GRAD_LAYOUTS
        ]
    return declared


def _fixed(**entries: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(entries.items())


def _possible(shape: str, can: Capabilities) -> bool:
    queries, keys = can.query_length, can.key_length
    if queries is None or keys is None:
        return False
    if shape == "K = 1":
        return 1 in keys
    if shape == "Q = 1":
        return 1 in queries and first_from(2, keys) is not None
    if shape == "Q = K":
        return first_from(2, queries, keys) is not None
    low, high = (queries, keys) if shape == "Q < K" else (keys, queries)
    smaller = first_from(2, low)
    return smaller is not None and first_from(smaller + 1, high) is not None


def first_from(least: int, *allowed: Range) -> int | None:
    """The first number from `least` on that is in every range."""
    step = math.lcm(*(limits.multiple for limits in allowed))
    number = max(least, *(limits.minimum for limits in allowed))
    number += -number % step
    return number if all(number in limits for limits in allowed) else None


def _edges(can: Capabilities) -> list[str]:
    assert can.key_length is not None
    lengths = [K for K in range(15, 258) if K in can.key_length]
    return [edge for edge in ("block - 1", "block", "block + 1") if any(edge_of(K) == edge for K in lengths)]
