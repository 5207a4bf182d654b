"""Checks what is timed: a block of rows of one batch row and one key/value head against the float64 reference.

The gradient of the output is zero outside the block, so that the block alone makes every gradient, and all of them can be
evaluated at any length. The bound is that of the conformance suite, from the backend's own numerics class. Dropout
draws differ between calls and backends: such a call is checked without its dropout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tfkit.inspection import BoundBackend, attend
from tfkit.plugin import AttentionInputs, AttentionOutput, Bias, DenseBias, DistanceBias, LinearBias, Mask, Numerics, Prepared

from ..attention.bound import Bounds, bounds, worst_ratio
from ..attention.compare import compared, gradients_of
from ..attention.reference import Reference, reference
from .call import Call

PAIRS = 1 << 15
"""Pairs of one head that are compared."""


@dataclass(frozen=True)
class Verdict:
    """The largest error as a share of its bound (above 1: wrong), and in which tensor; None where the case cannot decide."""

    worst: float | None
    tensor: str

    @property
    def wrong(self) -> bool:
        return self.worst is not None and not self.worst <= 1.0


class ReferenceCheck:
    """The reference block of one call, for all backends."""

    def __init__(self, call: Call) -> None:
        self.call = call
        inputs = call.inputs
        B, _, Q, _ = inputs.query.shape
        K = inputs.key.shape[2]
        self.row, self.group = B - 1, inputs.key.shape[1] - 1
        live = Q if inputs.mask.query_lengths is None else min(Q, int(inputs.mask.query_lengths[self.row]))
        count = max(1, min(Q, PAIRS // K))
        end = max(count, min(Q, live + count // 4))  # rows that see something and, where there are any, some that do not
        self.rows = slice(end - count, end)
        shared = inputs.query.shape[1] // inputs.key.shape[1]
        self.heads = slice(self.group * shared, (self.group + 1) * shared)
        self._bounds: dict[Numerics, Bounds] = {}

    @cached_property
    def inputs(self) -> AttentionInputs:
        """The block alone, as a call of its own."""
        whole, at = self.call.inputs, slice(self.row, self.row + 1)
        group = slice(self.group, self.group + 1)
        return replace(
            whole, query=whole.query[at, self.heads, self.rows].detach(), key=whole.key[at, group].detach(),
            value=whole.value[at, group].detach(), mask=_block(whole.mask, at, self.rows), bias=_heads(whole.bias, self.heads),
            dropout=0.0,
        )  # fmt: skip

    @cached_property
    def grad_output(self) -> Tensor:
        """Zero but for the block."""
        grad = torch.zeros_like(self.call.grad_output)
        grad[self.row, self.heads, self.rows] = self.call.grad_output[self.row, self.heads, self.rows]
        return grad

    @cached_property
    def reference(self) -> Reference:
        return reference(self.inputs, self.grad_output[self.row : self.row + 1, self.heads, self.rows])

    def bounds(self, numerics: Numerics) -> Bounds:
        if numerics not in self._bounds:
            tf32 = self.inputs.query.is_cuda and torch.backends.cuda.matmul.allow_tf32
            self._bounds[numerics] = bounds(self.reference, numerics, tf32)
        return self._bounds[numerics]

    def evaluate(self, backend: BoundBackend, prepared: Prepared | None = None) -> Verdict:
        """Runs the call once more, with what the backend has prepared, and compares it."""
        call, numerics = self.call, backend.entry.capabilities.numerics
        inputs = replace(call.inputs, dropout=0.0, prepared=prepared)
        output = attend(backend, inputs).output
        block = output[self.row : self.row + 1, self.heads, self.rows]
        bound = self.bounds(numerics)
        if not bool(bound.evaluated.all()):
            return Verdict(None, "output")
        if not bool(torch.isfinite(output).all()):
            return Verdict(float("inf"), "output")
        gradients = gradients_of(output, inputs, self.grad_output) if call.cell.training else {}
        parts = {name: self._part(name, gradient) for name, gradient in gradients.items()}
        results = compared(AttentionOutput(block), parts, self.reference, bound)
        worst, name = max((worst_ratio(got, want, limit), name) for name, got, want, limit in results)
        return Verdict(worst, name.removeprefix("gradient of "))

    def _part(self, name: str, gradient: Tensor) -> Tensor:
        """The block's part of a gradient."""
        if name == "query":
            return gradient[self.row : self.row + 1, self.heads, self.rows]
        if name == "bias":
            return gradient[self.heads]
        return gradient[self.row : self.row + 1, self.group : self.group + 1]


def _block(mask: Mask, at: slice, rows: slice) -> Mask:
    """The mask of one batch row, from query `rows.start` on."""
    lengths = mask.query_lengths
    return replace(
        mask,
        offset=mask.offset[at] + rows.start if isinstance(mask.offset, Tensor) else (mask.offset or 0) + rows.start,
        key_lengths=None if mask.key_lengths is None else mask.key_lengths[at],
        query_lengths=None if lengths is None else lengths[at] - rows.start,
    )


def _heads(bias: Bias | None, heads: slice) -> Bias | None:
    if bias is None:
        return None
    if isinstance(bias, LinearBias):
        return LinearBias(bias.slopes.detach()[heads])
    values = bias.values.detach()
    return DistanceBias(values[heads], bias.low) if isinstance(bias, DistanceBias) else DenseBias(values)
