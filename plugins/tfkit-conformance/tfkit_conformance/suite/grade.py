"""The accuracy of a backend beyond the bound: a grade, not a verdict.

    ratio = rms(output - exact) / rms(best - exact)       best: float32 accumulation throughout, rounded once to storage

over 1024 keys, the largest over output and gradients: A up to 1.5, B up to 3, C beyond. The worst-case bound cannot see an
accumulator that is kept in a half type; this can. It fails only a backend that promises a better grade (`Numerics.grade`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, accumulation, expand_heads

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.evaluated import Evaluated
from ..differences import double
from ..finding import Violation
from .layers import gradients, output

GRADES = {"A": 1.5, "B": 3.0, "C": float("inf")}


def ratios(subject: BackendUnderTest, dtype: str, seed: int = 0) -> dict[str, float]:
    """The ratio of root mean square errors by tensor: output, and each gradient where there is a backward."""
    return _ratios(Evaluated(subject, _case(subject, dtype, seed)))


def _ratios(evaluated: Evaluated) -> dict[str, float]:
    case, exact = evaluated.case, evaluated.reference
    best = _best(evaluated.inputs, evaluated.grad_output)
    found: dict[str, Tensor] = {"output": evaluated.output.output}
    wanted = {"output": exact.output, **exact.gradients}
    if case.gradients:
        found |= evaluated.gradients
    return {name: _rms(tensor, wanted[name]) / _rms(best[name], wanted[name]) for name, tensor in found.items()}


def grade_of(ratio: float) -> str:
    """The letter of a ratio; C for NaN."""
    return next((letter for letter, limit in GRADES.items() if ratio <= limit), "C")


def check_grade(subject: BackendUnderTest, dtype: str, seed: int = 0) -> tuple[str, float]:
    """The letter and the largest ratio. Raises Violation where the declaration promises a better one, and where the graded call
    is beyond the bound as any other one."""
    evaluated = Evaluated(subject, _case(subject, dtype, seed))
    output(evaluated)
    gradients(evaluated)
    found = _ratios(evaluated)
    name = max(found, key=lambda tensor: found[tensor])
    letter, promised = grade_of(found[name]), subject.capabilities.numerics.grade
    if promised is not None and letter > promised:
        times = f"{found[name]:.2f} times the rounding error of a careful kernel"
        message = f"{name} in {dtype} has {times}: {letter}, where {promised} is promised"
        raise Violation("grade", message, tensor=name, got=found[name], bound=GRADES[promised])
    return letter, found[name]


def _case(subject: BackendUnderTest, dtype: str, seed: int) -> Case:
    """Few queries, many keys, as near to 16 x 1024 x 64 as the declaration allows."""
    can = subject.capabilities
    plain = Case(B=1, H=2, G=2, Q=16, K=1024, D=64, V=64, dtype=dtype, seed=seed)
    fits = [
        replace(plain, Q=Q, K=K, D=D, V=D, gradients=gradients)
        for gradients in (can.backward, False)
        for D in (64, 32, 128, 16, 8, 256)
        for Q, K in ((16, 1024), (64, 1024), (128, 1024), (1024, 1024), (1, 1024), (16, 256), (128, 256), (16, 64))
    ]
    for case in fits:
        if subject.accepts(case.request(subject.device)):
            return case
    raise LookupError("the declaration accepts none of the sizes that are graded")


def _best(inputs: AttentionInputs, grad_output: Tensor) -> dict[str, Tensor]:
    """A plain call computed in float32 (float64 for float64), every result rounded once."""
    wide = accumulation(inputs.query.dtype)
    leaves = [tensor.detach().to(wide).requires_grad_() for tensor in (inputs.query, inputs.key, inputs.value)]
    query, key, value = leaves
    heads = query.shape[1]
    weights = torch.softmax(inputs.scale * query @ expand_heads(key, heads).mT, -1)
    output = weights @ expand_heads(value, heads)
    made = dict(zip(("query", "key", "value"), torch.autograd.grad(output, leaves, grad_output.to(wide)), strict=True))
    return {name: tensor.detach().to(inputs.query.dtype) for name, tensor in {"output": output, **made}.items()}


def _rms(found: Tensor, wanted: Tensor) -> float:
    error = double(found) - wanted
    return max(float(error.square().mean().sqrt()), 1e-300)
