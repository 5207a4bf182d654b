"""R5 to R8: powers of two and signs pass through attention without a rounding.

    f(Q, K, 2^k V) = 2^k f        f(Q, K, -V) = -f        f(2^k Q, 2^-k K, V) = f        f(2^k Q, K, V; 2^-k scale) = f
    f(S Q, S K, V) = f            S flips the sign of some features

A floating-point number times a power of two is exact unless it leaves the normal numbers; so elements that are subnormal in the
storage type, or below 2^60 times the smallest normal number of the accumulation type, where underflow within a sum may show,
are not compared. Nor are float16 gradients where the numerics class rounds on the way: float16 leaves its normal numbers there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import Numerics

from ..attention.evaluated import Call, Evaluated
from ..finding import Inconclusive
from .call_parts import repeats
from .fitting import both, explicit_scale, moderate
from .paired_calls import identical, leaf_copies, outcome
from .relation import Feature, Relation

Factors = dict[str, float]


def _scaled(name: str, evaluated: Evaluated, tensors: dict[str, Tensor], scale: float, factors: Factors, because: str) -> None:
    """Raise Violation unless each outcome is its factor (1 where none is said) times the one before."""
    inputs = replace(leaf_copies(evaluated.inputs, **tensors), scale=scale)
    dtype = evaluated.case.torch_dtype
    wide = torch.promote_types(dtype, torch.float32)
    least = max(torch.finfo(dtype).tiny, torch.finfo(wide).tiny * 2.0**60)
    before = outcome(evaluated)
    after = outcome(Call(evaluated.subject, inputs, evaluated.grad_output))
    for title in filter(repeats(evaluated), before):
        tensor = before[title]
        if (
            title.startswith("gradient")
            and dtype == torch.float16
            and _rounds_on_the_way(evaluated.subject.capabilities.numerics)
        ):
            continue
        want = tensor * factors.get(title, 1.0)
        compared = (tensor.abs() > least) & (want.abs() > least) & want.isfinite()  # `least` itself may come from below
        identical(name, title, after[title].where(compared, 0.0), want.where(compared, 0.0), because)


def _rounds_on_the_way(numerics: Numerics) -> bool:
    return "storage" in (numerics.scores, numerics.probabilities, numerics.gradients)


def _power(evaluated: Evaluated, *grown: Tensor, shrunk: Tensor | None = None) -> float:
    """A power of two by which these tensors can be multiplied (and `shrunk` divided) without a rounding."""
    for factor in (4.0, 2.0, 0.5, 0.25):
        pairs = [(tensor, factor) for tensor in grown] + ([] if shrunk is None else [(shrunk, 1 / factor)])
        if all(_exactly(tensor.detach(), by) for tensor, by in pairs):
            return factor
    raise Inconclusive("no power of two fits into the range of these numbers")


def _exactly(tensor: Tensor, factor: float) -> bool:
    by = tensor * factor
    room = float(by.abs().max()) * 16 < torch.finfo(tensor.dtype).max
    return room and bool((by / factor == tensor).all())


def _value_times_power(evaluated: Evaluated) -> None:
    value = evaluated.inputs.value
    factor = _power(evaluated, value)
    factors = dict.fromkeys(("output", "gradient of query", "gradient of key", "gradient of bias"), factor)
    because = f"is not {factor:g} times itself when every value is multiplied by {factor:g}"
    _scaled("value_times_power", evaluated, {"value": value * factor}, evaluated.inputs.scale, factors, because)


def _value_negated(evaluated: Evaluated) -> None:
    factors = dict.fromkeys(("output", "gradient of query", "gradient of key", "gradient of bias"), -1.0)
    because = "does not change its sign, and nothing else, when every value does"
    _scaled("value_negated", evaluated, {"value": -evaluated.inputs.value}, evaluated.inputs.scale, factors, because)


def _query_against_key(evaluated: Evaluated) -> None:
    query, key = evaluated.inputs.query, evaluated.inputs.key
    factor = _power(evaluated, query, shrunk=key)
    factors = {"gradient of query": 1 / factor, "gradient of key": factor}
    because = f"changes when queries are multiplied and keys divided by {factor:g}"
    tensors = {"query": query * factor, "key": key / factor}
    _scaled("query_against_key", evaluated, tensors, evaluated.inputs.scale, factors, because)


def _query_against_scale(evaluated: Evaluated) -> None:
    query = evaluated.inputs.query
    factor = _power(evaluated, query)
    because = f"changes when queries are multiplied and the scale is divided by {factor:g}"
    factors = {"gradient of query": 1 / factor}
    _scaled("query_against_scale", evaluated, {"query": query * factor}, evaluated.inputs.scale / factor, factors, because)


def _feature_signs(evaluated: Evaluated) -> None:
    query, key = evaluated.inputs.query, evaluated.inputs.key
    signs = torch.ones(query.shape[3], dtype=query.dtype, device=query.device)
    signs[evaluated.case.seed % 2 :: 2] = -1.0
    signs[evaluated.case.seed % len(signs)] = -1.0
    inputs = leaf_copies(evaluated.inputs, query=query * signs, key=key * signs)
    after = outcome(Call(evaluated.subject, inputs, evaluated.grad_output))
    before = outcome(evaluated)
    for title in filter(repeats(evaluated), before):
        want = before[title] * (signs if title in ("gradient of query", "gradient of key") else 1.0)
        because = "changes when the sign of a feature is flipped in queries and keys alike"
        identical("feature_signs", title, after[title], want, because)


_PRESCALED = Feature(
    "float16 queries that are multiplied by the scale before they are rounded",
    lambda case, subject: case.dtype == "float16" and subject.capabilities.numerics.query_prescaled,
)


def _relation(name: str, number: str, summary: str, run: Callable[[Evaluated], None], *voided_by: Feature) -> Relation:
    return Relation(name, number, summary, "exact", run, "A2", moderate, voided_by)


SCALING = (
    _relation("value_times_power", "R5", "Values times 2^k give the output times 2^k.", _value_times_power),
    _relation("value_negated", "R6", "Negated values give the negated output.", _value_negated),
    _relation(
        "query_against_key", "R7", "Queries times 2^k and keys times 2^-k give the same.", _query_against_key, _PRESCALED
    ),
    replace(
        _relation(
            "query_against_scale",
            "R7",
            "Queries times 2^k and a scale times 2^-k give the same.",
            _query_against_scale,
            _PRESCALED,
        ),
        adapt=both(moderate, explicit_scale),
    ),
    _relation("feature_signs", "R8", "Flipping the sign of a feature in queries and keys changes nothing.", _feature_signs),
)
