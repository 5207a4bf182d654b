"""A call of a backend with the output, the reference and the bounds that its checks share. Each is computed once, on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


class Call:
    """A call of a backend.

    Args:
        subject: the backend.
        inputs: the call, on the backend's device.
        grad_output: the gradient (B,H,Q,V) of the output.
    """

    def __init__(self, subject: BackendUnderTest, inputs: AttentionInputs, grad_output: Tensor) -> None:
        self.subject, self.inputs, self.grad_output = subject, inputs, grad_output

    @cached_property
    def output(self) -> AttentionOutput:
        """The backend's output. Raises Violation if the backend raises or returns something else."""
        return run(self.subject, self.inputs)

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """The gradients that the backend computed. Raises Violation if its backward pass fails."""
        return run_backward(self.subject, self.output, self.inputs, self.grad_output)

    @cached_property
    def reference(self) -> Reference:
        """The float64 result. Raises Inconclusive if it is beyond the range of the call's dtype."""
        return in_range(reference(self.inputs, self.grad_output))

    @cached_property
    def bounds(self) -> Bounds:
        """The error bounds. Raises Inconclusive if a row's scores are too large for the call's dtype."""
        return bounds_of(self.reference, self.subject.capabilities.numerics, self.subject.tf32)


class Evaluated(Call):
    """The call of a case."""

    def __init__(self, subject: BackendUnderTest, case: Case) -> None:
        super().__init__(subject, case.inputs(subject.device), case.grad_output(subject.device))
        self.case = case

    @cached_property
    def visible(self) -> Tensor:
        """Whether query i sees key j: bool (B,H,Q,K), from the loops of the reference."""
        case = self.case
        return visible_pairs(self.inputs.mask, case.B, case.H, case.Q, case.K)


def in_range(exact: Reference) -> Reference:
    """The result. Raises Inconclusive if it is beyond the range of the call's dtype."""
    dtype = exact.inputs.query.dtype
    if any(float(tensor.abs().max()) > torch.finfo(dtype).max for tensor in (exact.output, *exact.gradients.values())):
        raise Inconclusive(f"the right answer is beyond the range of {str(dtype).removeprefix('torch.')}")
    return exact


def bounds_of(exact: Reference, numerics: Numerics, tf32: bool = False) -> Bounds:
    """The bounds of a call. Raises Inconclusive if a row's scores are too large for its dtype.

    `tf32`: its float32 products are TF32 even if torch's switch is off."""
    query = exact.inputs.query
    bound = bounds(exact, numerics, tf32 or (query.is_cuda and torch.backends.cuda.matmul.allow_tf32))
    if not bool(bound.evaluated.all()):
        dtype = str(query.dtype).removeprefix("torch.")
        raise Inconclusive(f"some scores are too large for {dtype} in this numerics class")
    return bound


def run(subject: BackendUnderTest, inputs: AttentionInputs, check: str = "contract") -> AttentionOutput:
    """Calls the backend. Raises Violation if it raises, or returns no AttentionOutput of the right shape; Inconclusive if the
    adaptor of a plain function cannot write the call."""
    try:
        answer = subject.call(inputs)
    except (Violation, Inconclusive):
        raise
    except Exception as reason:  # any exception of a backend is reported with the call that raised it
        raise Violation(check, f"raised {format_exception(reason)} for a call that it declares") from reason
    if not isinstance(answer, AttentionOutput):
        raise Violation(check, f"returned a {type(answer).__name__}, expected an AttentionOutput")
    for name, tensor in (("output", answer.output), ("weights", answer.weights), ("lse", answer.lse)):
        if not isinstance(tensor, Tensor) and (tensor is not None or name == "output"):
            raise Violation(check, f"{name} is a {type(tensor).__name__}, expected a tensor", tensor=name)
    got, want = answer.output, (*inputs.query.shape[:3], inputs.value.shape[3])
    if tuple(got.shape) != want or got.device.type != inputs.query.device.type:
        where = f"{want} on {inputs.query.device}"
        raise Violation(check, f"output is {tuple(got.shape)} on {got.device}, expected {where}", tensor="output")
    return answer


def run_backward(
    subject: BackendUnderTest, answer: AttentionOutput, inputs: AttentionInputs, grad_output: Tensor, check: str = "contract"
) -> dict[str, Tensor]:
    """Runs the backward pass of a call. Raises Violation if there is none."""
    if not answer.output.requires_grad:
        raise Violation(check, "the output does not require gradients although its inputs do: they would be lost silently")
    with backward_of(subject, check):
        return gradients_of(answer.output, inputs, grad_output)


@contextmanager
def backward_of(subject: BackendUnderTest, check: str) -> Iterator[None]:
    """A backward pass of the backend. Raises Violation with what it raises."""
    try:
        with subject.traced():
            yield
    except (Violation, Inconclusive):
        raise
    except Exception as reason:  # as above, from the backward pass
        raise Violation(check, f"its backward pass raised {format_exception(reason)} for a call that it declares") from reason
