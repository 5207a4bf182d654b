"""A case with what its checks share: the call, the backend's output, the reference, the bounds. Each is computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, AttentionOutput, Numerics

from ..finding import Inconclusive, Violation
from ..raised import format_exception
from .backend_under_test import BackendUnderTest
from .bound import Bounds, bounds
from .case import Case
from .compare import gradients_of
from .reference import Reference, reference, visible_pairs


@dataclass(frozen=True)
class Evaluated:
    """`case` on the subject's device, lazily. Raises Inconclusive where the reference itself leaves the dtype's range."""

    subject: BackendUnderTest
    case: Case

    @cached_property
    def inputs(self) -> AttentionInputs:
        return self.case.inputs(self.subject.device)

    @cached_property
    def grad_output(self) -> Tensor:
        return self.case.grad_output(self.subject.device)

    @cached_property
    def visible(self) -> Tensor:
        """(B,H,Q,K) bool, pair by pair."""
        case = self.case
        return visible_pairs(self.inputs.mask, case.B, case.H, case.Q, case.K)

    @cached_property
    def output(self) -> AttentionOutput:
        return run(self.subject, self.inputs)

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        return run_backward(self.subject, self.output, self.inputs, self.grad_output)

    @cached_property
    def reference(self) -> Reference:
        found = reference(self.inputs, self.grad_output)
        largest = torch.finfo(self.case.torch_dtype).max
        if any(float(tensor.abs().max()) > largest for tensor in (found.output, *found.gradients.values())):
            raise Inconclusive(f"the right answer is beyond the range of {self.case.dtype}")
        return found

    @cached_property
    def bounds(self) -> Bounds:
        """Raises Inconclusive where some row's scores are too large to be evaluated."""
        return bounds_of(self.reference, self.subject.capabilities.numerics, self.subject.tf32)


def bounds_of(found: Reference, numerics: Numerics, tf32: bool = False) -> Bounds:
    """The bounds of a call. `tf32`: its float32 products are TF32 whatever torch's switch says. Raises Inconclusive where some
    row's scores are too large for the dtype."""
    query = found.inputs.query
    made = bounds(found, numerics, tf32 or (query.is_cuda and torch.backends.cuda.matmul.allow_tf32))
    if not bool(made.evaluated.all()):
        dtype = str(query.dtype).removeprefix("torch.")
        raise Inconclusive(f"some scores are too large for {dtype} in this numerics class")
    return made


def run(subject: BackendUnderTest, inputs: AttentionInputs, check: str = "contract") -> AttentionOutput:
    """Call the backend. Raises Violation where it raises, or gives no AttentionOutput of the right shape."""
    try:
        found = subject.call(inputs)
    except Violation:
        raise
    except Exception as reason:  # any exception of a backend is reported with the call that raised it
        raise Violation(check, f"raised {format_exception(reason)} for a call that it declares") from reason
    if not isinstance(found, AttentionOutput):
        raise Violation(check, f"gave a {type(found).__name__}, expected an AttentionOutput")
    for name, tensor in (("output", found.output), ("weights", found.weights), ("lse", found.lse)):
        if not isinstance(tensor, Tensor) and (tensor is not None or name == "output"):
            raise Violation(check, f"{name} is a {type(tensor).__name__}, expected a tensor", tensor=name)
    got, want = found.output, (*inputs.query.shape[:3], inputs.value.shape[3])
    if tuple(got.shape) != want or got.device.type != inputs.query.device.type:
        where = f"{want} on {inputs.query.device}"
        raise Violation(check, f"output is {tuple(got.shape)} on {got.device}, expected {where}", tensor="output")
    return found


def run_backward(
    subject: BackendUnderTest, found: AttentionOutput, inputs: AttentionInputs, grad_output: Tensor, check: str = "contract"
) -> dict[str, Tensor]:
    """The gradients of a call. Raises Violation where there are none."""
    if not found.output.requires_grad:
        raise Violation(check, "the output does not require gradients although its inputs do: they would be lost silently")
    try:
        return gradients_of(found.output, inputs, grad_output)
    except Violation:
        raise
    except Exception as reason:  # as above, from the backward pass
        raise Violation(check, f"its backward pass raised {format_exception(reason)} for a call that it declares") from reason


def changed(inputs: AttentionInputs, gradients: bool, **tensors: Tensor) -> AttentionInputs:
    """The call with other query, key or value, as leaves that require gradients or not."""
    leaves = {name: tensor.detach().requires_grad_(gradients) for name, tensor in tensors.items()}
    return replace(inputs, **leaves)  # type: ignore[arg-type]
