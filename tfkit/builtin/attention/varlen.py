"""Attention with torch.nn.attention.varlen.varlen_attn: FlashAttention on packed batches, without padding.

    output = softmax(scale q k^T, masked) v          https://docs.pytorch.org/docs/stable/attention.varlen.html

torch has FlashAttention 2 built in. `varlen.fa3` and `varlen.fa4` activate another implementation for each forward and each
backward and then restore torch's own (https://docs.pytorch.org/docs/stable/attention.html).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import attention
from torch.nn.attention import varlen

from ...attention.flash_calls import FlashCall, FlashKernel, flash_calls, run_flash_calls
from ...plugin import (
    AttentionInputs,
    AttentionOutput,
    BackendRefused,
    Bias,
    Diagnostic,
    Mask,
    NoOptions,
    Prepared,
    Shapes,
    require_capabilities,
)
from .entries import VARLEN, VARLEN_FA3, VARLEN_FA4

_ACTIVE_LOCK = threading.RLock()
"""The active implementation is a setting of the process."""

CHECKS = {entry.name: require_capabilities(entry.name, entry.capabilities) for entry in (VARLEN, VARLEN_FA3, VARLEN_FA4)}


def prepare(mask: Mask, bias: Bias | None, shapes: Shapes, options: NoOptions) -> Prepared:
    """Cut the batch into calls once, for all layers of a stack."""
    return Prepared(flash_calls(mask, shapes))


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,D) -> (B,H,Q,D)."""
    CHECKS[VARLEN.name](inputs)
    return run_flash_calls(inputs, call_varlen)


def attend_fa3(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """As `attend`, with FlashAttention 3."""
    CHECKS[VARLEN_FA3.name](inputs)
    return run_flash_calls(inputs, with_implementation("FA3", call_varlen))


def attend_fa4(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """As `attend`, with FlashAttention 4."""
    CHECKS[VARLEN_FA4.name](inputs)
    return run_flash_calls(inputs, with_implementation("FA4", call_varlen))


def call_varlen(
    inputs: AttentionInputs, call: FlashCall, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor | None]:
    """One call of `varlen_attn`.

    `num_splits=1` makes the result of a row independent of the longest row of its batch. There is no log-sum-exp: torch's
    documentation and its code order its axes differently.
    """
    queries, keys = (max(sizes) for sizes in zip(*((one.queries, one.keys) for one in call.sequences), strict=True))
    query_borders, key_borders, shape = call.query_borders, call.key_borders, query.shape
    if query_borders is None or key_borders is None:  # every row has the same sequence
        query_borders, key_borders = (
            torch.arange(0, tensor.shape[0] * tensor.shape[1] + 1, tensor.shape[1], dtype=torch.int32, device=query.device)
            for tensor in (query, key)
        )
        query, key, value = (tensor.flatten(0, 1) for tensor in (query, key, value))
    window = (-1 if call.left is None else call.left, 0 if call.causal else -1)
    output: Any = varlen.varlen_attn(
        query, key, value, query_borders, key_borders, queries, keys,
        scale=inputs.scale, window_size=window, enable_gqa=query.shape[1] != key.shape[1], num_splits=1,
    )  # fmt: skip
    return output.reshape(shape), None


def with_implementation(name: str, kernel: FlashKernel) -> FlashKernel:
    """The kernel with another implementation of flash attention active in its forward and in its backward.

    Without this the backward would run whichever implementation is active when it runs, on results of another one.
    """

    def attend_call(inputs: AttentionInputs, call: FlashCall, *tensors: Tensor) -> tuple[Tensor, Tensor | None]:
        def run(*operands: Tensor) -> Tensor:
            return kernel(inputs, call, *operands)[0]

        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return _Activated.apply(name, run, *tensors), None  # type: ignore[no-untyped-call]
        with active(name):
            return run(*tensors), None

    return attend_call


class _Activated(torch.autograd.Function):
    """A function whose forward and backward run with an implementation active."""

    @staticmethod
    def forward(ctx: Any, name: str, run: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        detached = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
        with active(name), torch.enable_grad():
            output = run(*detached)
        ctx.name, ctx.detached, ctx.output = name, detached, output
        return output.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        needed = [tensor for tensor in ctx.detached if tensor.requires_grad]
        with active(ctx.name):
            gradients = iter(torch.autograd.grad(ctx.output, needed, gradient, retain_graph=True))
        return None, None, *(next(gradients) if tensor.requires_grad else None for tensor in ctx.detached)


@contextmanager
def active(name: str) -> Iterator[None]:
    """Activate an implementation and restore torch's own; an implementation that is active already stays so.

    Raises BackendRefused where another one is active, because that would change what the caller asked for.
    """
    with _ACTIVE_LOCK:
        current = attention.current_flash_attention_impl()
        if current not in (None, name):
            message = f"`varlen.{name.lower()}` needs the flash attention implementation {name}, and {current} is active"
            raise BackendRefused(Diagnostic("TFK060", message, "call torch.nn.attention.restore_flash_attention_impl()"))
        if current == name:
            yield
            return
        attention.activate_flash_attention_impl(name)
        try:
            yield
        finally:
            attention.restore_flash_attention_impl()
