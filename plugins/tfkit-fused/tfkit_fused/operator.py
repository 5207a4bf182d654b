"""The kernels as operators of torch: known to autograd, torch.compile and fake tensors, opaque to all of them.

A plain eager call goes around the operators, whose wrapper in Python takes longer than many kernels: straight to the launch, or
through an autograd function of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .launch import backward as launch_backward, forward as launch_forward
from .operator_call import Call

ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? offsets, Tensor? key_lengths, Tensor? query_lengths, Tensor? key_visible, "
    "Tensor? query_segments, Tensor? key_segments, Tensor? visible, Tensor? bias, Tensor? seed, str bias_kind, "
    "SymInt bias_low, SymInt offset, SymInt? left, SymInt? right, float scale, float? softcap, float dropout, "
    "int? tile_queries, int? tile_keys, str tuned, bool atomic"
)
NUMBER = ARGUMENTS.count(",") + 1


@torch.library.custom_op("tfkit_fused::attend", mutates_args=(), schema=f"({ARGUMENTS}) -> (Tensor, Tensor)")
def attend(*arguments: Any) -> tuple[Tensor, Tensor]:
    """output (B,H,Q,V) and log-sum-exp (B,H,Q) float32; the arguments are the fields of `Call`."""
    return launch_forward(Call(*arguments))


@attend.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    query, value = arguments[0], arguments[2]
    B, H, Q, _ = query.shape
    return query.new_empty(B, Q, H, value.shape[3]).transpose(1, 2), query.new_empty(B, H, Q, dtype=torch.float32)


@torch.library.custom_op(
    "tfkit_fused::attend_backward",
    mutates_args=(),
    schema=f"({ARGUMENTS}, Tensor output, Tensor lse, Tensor grad, Tensor? grad_lse, bool wants_bias) -> Tensor[]",
)
def attend_backward(*arguments: Any) -> list[Tensor]:
    """Gradients of query, key, value and, where wanted, of the bias."""
    return _launched_backward(*arguments)


def _launched_backward(*arguments: Any) -> list[Tensor]:
    return launch_backward(Call(*arguments[:NUMBER]), *arguments[NUMBER:])


@attend_backward.register_fake
def _(*arguments: Any) -> list[Tensor]:
    gradients = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in arguments[:3]]
    return [*gradients, torch.empty_like(arguments[10], memory_format=torch.contiguous_format)] if arguments[-1] else gradients


def attended(*arguments: Any) -> tuple[Tensor, Tensor]:
    """What `attend` gives, by the shortest way."""
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    if not _is_plain(tensors):
        return attend(*arguments)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return Attended.apply(*arguments)
    return launch_forward(Call(*arguments))


def _is_plain(tensors: list[Tensor]) -> bool:
    """Whether nobody listens to operators: no compiler, exporter, transformation, or subclass of tensors."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or torch.jit.is_tracing()
        or any(type(tensor) not in (Tensor, torch.nn.Parameter) for tensor in tensors)
    )


class Attended(torch.autograd.Function):
    """`attend` of eager calls. It has no second derivative either."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        output = launch_forward(Call(*arguments))
        _keep(ctx, arguments, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        return _gradients(ctx, grad, grad_lse, _launched_backward)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.tensors = [isinstance(argument, Tensor) for argument in inputs]
    ctx.others = [None if isinstance(argument, Tensor) else argument for argument in inputs]
    ctx.wants_bias = isinstance(inputs[10], Tensor) and ctx.needs_input_grad[10]
    ctx.save_for_backward(*(argument for argument in inputs if isinstance(argument, Tensor)), *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    return _gradients(ctx, grad, grad_lse, attend_backward)


def _gradients(ctx: Any, grad: Tensor | None, grad_lse: Tensor | None, backward: Any) -> tuple[Any, ...]:
    *saved, output, lse = ctx.saved_tensors
    tensors = iter(saved)
    arguments = [next(tensors) if there else other for there, other in zip(ctx.tensors, ctx.others, strict=True)]
    if grad is None:
        grad = torch.zeros_like(output)
    gradients = backward(*arguments, output, lse, grad, grad_lse, ctx.wants_bias)
    bias = gradients[3] if ctx.wants_bias else None
    return (*gradients[:3], *([None] * 7), bias, *([None] * (NUMBER - 11)))


attend.register_autograd(_backward, setup_context=_keep)
