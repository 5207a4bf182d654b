"""A fused kernel in plain torch with replaceable stages: mutants and correct kernels are made from it.

`Kernel()` covers the whole contract. A correct kernel of the kill matrix is this kernel with other settings. A mutant is
this kernel with one stage replaced:
`Kernel(scale=lambda call: call.scale * 1.01)`. The stages are in `stages`, the two passes that
run them in `passes`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tfkit import BackendRefused, Diagnostic
from tfkit.inspection import BIAS_KINDS, MASK_TERMS
from tfkit.plugin import (
    AttentionInputs,
    AttentionOutput,
    Bias,
    Capabilities,
    Device,
    LinearBias,
    Numerics,
    Range,
    require_capabilities,
)

from . import stages
from .design import KernelDesign
from .passes import backward_pass, forward_pass

CAPABILITIES = Capabilities(
    devices=(Device(kind="cpu"), Device(kind="cuda")),
    dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
    head_dim=Range(),
    value_dim_differs=True,
    query_length=Range(),
    key_length=Range(),
    mask_terms=frozenset(MASK_TERMS),
    tensor_offset=True,
    bias_kinds=frozenset(BIAS_KINDS),
    bias_gradient=frozenset(BIAS_KINDS),
    dropout=True,
    weights="detached",
    lse=True,
    grouped_queries=True,
    softcap=True,
    backward=True,
    deterministic_backward=True,
    numerics=Numerics(tf32=True, nan_as_zero=frozenset({"cpu", "cuda"})),
)
"""What the kernel declares: all of the contract but other scores than the dot product, second derivatives and compilation."""

refuse_undeclared = require_capabilities("kernel", CAPABILITIES)


@dataclass(frozen=True)
class Kernel(KernelDesign):
    """softmax(scale q k^T + bias, masked) v, called as a backend is."""

    def __call__(self, inputs: AttentionInputs, options: Any = None) -> AttentionOutput:
        """Output, and on request weights (without gradient) and log-sum-exp. Raises BackendRefused for what `CAPABILITIES`
        lacks."""
        refuse_undeclared(inputs)
        values = None if inputs.bias is None else stages.bias_values(inputs.bias)
        results = _Attention.apply(self, inputs, inputs.query, inputs.key, inputs.value, values)  # type: ignore[no-untyped-call]
        return AttentionOutput(*results)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, call: AttentionInputs, *leaves: Tensor | None) -> tuple[Tensor | None, ...]:
        output, weights, lse, kept = forward_pass(kernel, call)
        if isinstance(call.mask.offset, Tensor):  # the backward pass reads it, and its caller may change it before
            call = replace(call, mask=replace(call.mask, offset=call.mask.offset.clone()))
        ctx.kernel, ctx.call = kernel, call
        ctx.save_for_backward(*leaves, output, *kept)
        ctx.mark_non_differentiable(*(tensor for tensor in (weights, lse) if tensor is not None))
        return output, weights, lse

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, *others: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # asked once: checkpointing forgets them then
        leaves, output, kept = saved[:4], saved[4], saved[5:]
        call = replace(ctx.call, query=leaves[0], key=leaves[1], value=leaves[2], bias=_with_values(ctx.call.bias, leaves[3]))
        with torch.no_grad():
            all_gradients = backward_pass(ctx.kernel, call, grad_output, output, kept, with_bias=ctx.needs_input_grad[5])
        gradients: list[Tensor | None] = []
        for name, leaf, wanted in zip(("query", "key", "value", "bias"), leaves, ctx.needs_input_grad[2:], strict=True):
            gradients.append(_once(all_gradients[name].to(leaf.dtype), leaves) if wanted else None)
        return None, None, *gradients


class _Once(torch.autograd.Function):
    """The identity, whose own gradient is refused."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *leaves: Tensor | None) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        raise BackendRefused(Diagnostic("TFK060", "this kernel has no second derivative"))


def _once(gradient: Tensor, leaves: tuple[Tensor | None, ...]) -> Tensor:
    """The gradient, which refuses a second derivative when one is asked of it: in a graph that is kept for one."""
    return _Once.apply(gradient, *leaves) if torch.is_grad_enabled() else gradient  # type: ignore[no-untyped-call]


def _with_values(bias: Bias | None, values: Tensor) -> Bias | None:
    if bias is None:
        return None
    return LinearBias(values) if isinstance(bias, LinearBias) else replace(bias, values=values)


attend = Kernel()
"""The kernel with its default settings, as an entry names it."""
