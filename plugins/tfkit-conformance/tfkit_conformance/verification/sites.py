"""Checks every attention backend at every site, on the inputs of the site in a run of the model.

Output, log-sum-exp where declared, and the gradients of query, key, value and bias are held against the float64 reference by
the componentwise bound of the backend's numerics class (`attention/bound.py`). The reference writes visibility as
plain loops, so the recorded lengths are moderate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tfkit.inspection import BoundBackend, check_request
from tfkit.plugin import AttentionInputs, DenseBias, DistanceBias, LinearBias, shapes_of

from ..attention.bound import Bounds, bounds
from ..attention.compare import gradients_of, request_of
from ..attention.reference import Reference, reference
from ..finding import Violation
from ..raised import format_exception
from .comparison import close
from .memory import no_room
from .recording import Recording, SiteCall
from .row import Status

CHECK = "attention"


@dataclass(frozen=True)
class Evaluated:
    """The result of one backend at one site."""

    site: str
    backend: str
    status: Status
    worst: float | None = None
    message: str = ""
    violation: Violation | None = None


def check_sites(recording: Recording, backends: dict[str, dict[str, BoundBackend]], seed: int) -> Iterator[Evaluated]:
    """Every backend that each site may use, by site and name, on the recorded inputs."""
    generator = torch.Generator().manual_seed(seed)
    for site, call in recording.sites.items():
        if call.attention.config.score != "dot":
            words = f"the reference knows dot products; `{call.attention.config.score}` scores are evaluated in the whole model"
            yield from (Evaluated(site, name, "not applicable", None, words) for name in backends[site])
            continue
        right: tuple[AttentionInputs, Tensor, Reference] | None = None
        known: dict[str, Bounds] = {}
        for name, backend in backends[site].items():
            try:
                right = right or _right(call, generator)
                yield _check_one(site, name, backend, *right, known)
            except Exception as reason:
                if not no_room(reason):
                    raise
                yield Evaluated(site, name, "not run", None, no_room(reason))


def _right(call: SiteCall, generator: torch.Generator) -> tuple[AttentionInputs, Tensor, Reference]:
    """The call on leaves, a gradient of its output, and what it must give."""
    inputs = with_leaves(call.inputs, True)
    B, H, Q, _ = inputs.query.shape
    drawn = torch.randn(B, H, Q, inputs.value.shape[3], generator=generator, dtype=torch.float64)
    grad_output = drawn.to(inputs.query.dtype).to(inputs.query.device)
    return inputs, grad_output, reference(inputs, grad_output)


def _check_one(
    site: str,
    name: str,
    backend: BoundBackend,
    inputs: AttentionInputs,
    grad_output: Tensor,
    wanted: Reference,
    known: dict[str, Bounds],
) -> Evaluated:
    note = ""
    verdict = check_request(backend.entry, request_of(inputs), backend.options)
    if not verdict.accepted:
        forward = check_request(backend.entry, request_of(inputs, False), backend.options)
        if not forward.accepted:
            return Evaluated(site, name, "refused", None, "; ".join(forward.refused))
        inputs, note = with_leaves(inputs, False), f"forward only: {'; '.join(verdict.refused)}"
    numerics = backend.entry.capabilities.numerics
    key = repr(numerics)
    if key not in known:
        known[key] = bounds(wanted, numerics, tf32=inputs.query.is_cuda and torch.backends.cuda.matmul.allow_tf32)
    bound = known[key]
    if not bool(bound.evaluated.all()):
        return Evaluated(site, name, "inconclusive", None, "the scores are too large for this dtype: the case cannot decide")
    try:
        worst = _errors(site, name, backend, inputs, grad_output, wanted, bound)
    except Violation as violation:
        return Evaluated(site, name, "failed", None, violation.message, violation)
    except Exception as reason:  # any exception of a backend is reported as its failure
        if no_room(reason):
            raise
        return Evaluated(site, name, "failed", None, f"raised {format_exception(reason)} for a call that it declares")
    return Evaluated(site, name, "passed", worst, note)


def _errors(
    site: str,
    name: str,
    backend: BoundBackend,
    inputs: AttentionInputs,
    grad_output: Tensor,
    wanted: Reference,
    bound: Bounds,
) -> float:
    declared = backend.entry.capabilities.lse
    found = backend.attend(prepared(backend, replace(inputs, return_lse=declared)), backend.options)
    words = f"{name} at {site}"
    if found.output.dtype != inputs.query.dtype:
        raise Violation(CHECK, f"{words}: the output is {found.output.dtype}, not {inputs.query.dtype}")
    worst = close(CHECK, found.output, wanted.output, bound.output, words, "output")
    if declared and found.lse is not None:
        worst = max(worst, close(CHECK, found.lse, wanted.lse, bound.lse, words, "lse"))
    if not inputs.query.requires_grad:
        return worst
    for leaf, gradient in gradients_of(found.output, inputs, grad_output).items():
        tensor = f"gradient of {leaf}"
        worst = max(worst, close(CHECK, gradient, wanted.gradients[leaf], bound.gradients[leaf], words, tensor))
    return worst


def prepared(backend: BoundBackend, inputs: AttentionInputs) -> AttentionInputs:
    """The call with what the backend makes of its mask, as a stack would hand it over."""
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
