"""Checks every attention backend at every site, on the inputs of the site in a run of the model.

Output, log-sum-exp if declared, and every gradient are compared with the float64 reference. The bound
is the componentwise one of the backend's numerics class (`attention/bound.py`). The reference computes visibility in plain
loops, so the recorded lengths are moderate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from tfkit.inspection import BoundBackend, check_request
from tfkit.plugin import AttentionInputs, DenseBias, DistanceBias, LinearBias, shapes_of

from ..attention.bound import Bounds
from ..attention.compare import compared, gradients_of, request_of
from ..attention.evaluated import bounds_of
from ..attention.reference import Reference, reference
from ..finding import Inconclusive, Violation
from ..raised import no_room
from .recording import Recording, SiteCall
from .row import ForwardOnly, NotApplicable, PartCheck, Refused, close

CHECK = "attention"
Expected = tuple[AttentionInputs, Tensor, Reference]


def site_checks(
    recording: Recording, part: str, backends: dict[str, dict[str, BoundBackend]], seed: int
) -> Iterator[PartCheck]:
    """The checks of every backend at every site, on the recorded inputs of all its calls. `backends` are by site and name."""
    generator = torch.Generator().manual_seed(seed)
    for site, calls in recording.sites.items():
        score, expected = calls[0].attention.config.score, cache(partial(_expected_calls, calls, generator))
        for name, backend in backends[site].items():
            check: Callable[[], float] = partial(_not_applicable, score)
            if score == "dot":
                try:  # a mistake of the reference is no finding about a backend
                    check = partial(_check_calls, backend, f"{name} at {site}", _with_bounds(expected(), backend))
                except Inconclusive as reason:  # scores that are NaN or too large have no bound
                    check = partial(_raise, reason)
                except Exception as reason:
                    if not no_room(reason):
                        raise
                    check = partial(_raise, reason)
            yield PartCheck(part, "A1-A5", site, check, name)


def _expected_calls(calls: list[SiteCall], generator: torch.Generator) -> list[Expected]:
    return [_expected(call, generator) for call in calls]


def _not_applicable(score: str) -> float:
    raise NotApplicable(f"the reference computes dot products; `{score}` scores are checked in the whole model")


def _raise(reason: Exception) -> float:
    raise reason


def _with_bounds(expected: list[Expected], backend: BoundBackend) -> list[tuple[Expected, Bounds]]:
    return [(result, bounds_of(result[2], backend.entry.capabilities.numerics)) for result in expected]


def _check_calls(backend: BoundBackend, words: str, expected: list[tuple[Expected, Bounds]]) -> float:
    """The largest error of one backend over its bound in all calls of a site."""
    return max(
        _check_backend(backend, words if len(expected) == 1 else f"{words}, step {number}", *result, bound)
        for number, (result, bound) in enumerate(expected)
    )


def _expected(call: SiteCall, generator: torch.Generator) -> tuple[AttentionInputs, Tensor, Reference]:
    """The call on tensors that require gradients, a gradient of its output, and the reference."""
    inputs = with_leaves(call.inputs, True)
    B, H, Q, _ = inputs.query.shape
    drawn = torch.randn(B, H, Q, inputs.value.shape[3], generator=generator, dtype=torch.float64)
    grad_output = drawn.to(inputs.query.dtype).to(inputs.query.device)
    return inputs, grad_output, reference(inputs, grad_output)


def _check_backend(
    backend: BoundBackend, words: str, inputs: AttentionInputs, grad_output: Tensor, wanted: Reference, bound: Bounds
) -> float:
    """The largest error of one backend over its bound; without gradients if its declaration refuses them."""
    verdict = check_request(backend.entry, request_of(inputs), backend.options)
    if not verdict.accepted:
        forward = check_request(backend.entry, request_of(inputs, False), backend.options)
        if not forward.accepted:
            raise Refused("; ".join(forward.refused))
        inputs = with_leaves(inputs, False)
    can = backend.entry.capabilities
    answer = backend.attend(prepared(backend, replace(inputs, return_lse=can.lse)), backend.options)
    if answer.output.dtype != inputs.query.dtype:
        raise Violation(CHECK, f"{words}: the output is {answer.output.dtype}, not {inputs.query.dtype}")
    gradients = gradients_of(answer.output, inputs, grad_output)
    results = compared(answer, gradients, wanted, bound)
    worst = max(close(CHECK, got, want, limit, words, name) for name, got, want, limit in results)
    if not verdict.accepted:
        raise ForwardOnly(f"forward only: {'; '.join(verdict.refused)}", worst)
    return worst


def prepared(backend: BoundBackend, inputs: AttentionInputs) -> AttentionInputs:
    """The call with the result of the backend's `prepare`, as a stack passes it."""
    if backend.prepare is None:
        return replace(inputs, prepared=None)
    return replace(inputs, prepared=backend.prepare(inputs.mask, None, shapes_of(inputs), backend.options))


def with_leaves(inputs: AttentionInputs, gradients: bool) -> AttentionInputs:
    """The same call on copies of its tensors that a gradient can be asked for."""

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().requires_grad_(gradients)

    bias: Any = inputs.bias
    if isinstance(bias, DenseBias):
        bias = DenseBias(leaf(bias.values))
    elif isinstance(bias, DistanceBias):
        bias = DistanceBias(leaf(bias.values), bias.low)
    elif isinstance(bias, LinearBias):
        bias = LinearBias(bias.slopes.detach().clone())  # slopes are constants: no built-in scheme learns them
    return replace(inputs, query=leaf(inputs.query), key=leaf(inputs.key), value=leaf(inputs.value), bias=bias, prepared=None)
