"""Attention with torch.nn.functional.scaled_dot_product_attention, which uses a fused kernel if one supports the call.

    output = softmax(scale q k^T + rendered) v       https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html

A large mask makes fused kernels slow or unavailable, so the mask is as small as possible: `is_causal` for a square causal
call from position 0; rows set to zero afterwards for query lengths (with equal key lengths, this gives right padding at full
speed); (B,1,1,K) for key lengths and key visibility; (B,H,Q,K) only for a bias with a mask per batch row.

On a CPU, calls with few queries or few keys use two matrix products instead (`tfkit/cpu/few_queries.py`), unless the options
name a kernel.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ...attention.rendering import always, no_fully_masked_row, queries_that_see
from ...cpu import few_queries
from ...plugin import (
    AttentionInputs,
    AttentionOutput,
    Bias,
    Mask,
    NoOptions,
    Prepared,
    Shapes,
    accumulation,
    dense_bias,
    expand_heads,
    require_capabilities,
    select_rows,
    shapes_of,
    unmask_empty_rows,
    visible,
)
from . import eager
from .entries import SDPA, SdpaOptions

Rendered = tuple[Tensor | None, bool, Tensor | None]
"""The mask for the kernel (bool, or float, which is added), its `is_causal`, and `rows`, False for fully masked rows."""

KERNELS = {
    "math": [SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION],
    "cudnn": [SDPBackend.CUDNN_ATTENTION],
}
HALF = (torch.bfloat16, torch.float16)
_KERNEL_LOCK = threading.RLock()
"""Torch selects kernels by a global setting. The lock lets one thread at a time change and restore it."""

check = require_capabilities(SDPA.name, SDPA.capabilities)

SAFE_WITH_MASK = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def prepare(mask: Mask, bias: Bias | None, shapes: Shapes, options: SdpaOptions) -> Prepared:
    """Render mask and bias once, for all layers of a stack."""
    rendered = _render(mask, bias, shapes)
    if shapes.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        rendered = _simplified(rendered, shapes.dtype)
    return Prepared(rendered, with_bias=bias is not None)


def attend(inputs: AttentionInputs, options: SdpaOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    check(inputs)
    if inputs.scale <= 0.0:  # beside a causal flag torch's kernel gives NaN, for it multiplies -inf by the scale
        inputs = replace(inputs, query=inputs.query * (-1.0 if inputs.scale < 0.0 else 0.0), scale=abs(inputs.scale) or 1.0)
    prepared = inputs.prepared
    if prepared is not None and (prepared.with_bias or inputs.bias is None):
        mask, causal, rows = prepared.payload
    else:
        mask, causal, rows = _render(inputs.mask, inputs.bias, shapes_of(inputs))
    if rows is not None and torch.is_grad_enabled():
        # The kernel computes fully masked rows, and `select_rows` discards them. If the scores of hidden keys are huge, the
        # kernel's backward computes exp(score - lse) = inf, and 0 * inf = NaN would reach the keys. A zero query avoids it.
        inputs = replace(inputs, query=torch.where(rows, inputs.query, 0.0))
    kernels = _kernels(options, mask, inputs.query)
    if kernels is None and not causal and few_queries.products_are_faster(inputs, mask):
        return AttentionOutput(select_rows(few_queries.attend(inputs, mask), rows))
    if kernels is None:
        output = _call(inputs, mask, causal)
    elif torch.compiler.is_compiling():
        with sdpa_kernel(kernels):
            output = _call(inputs, mask, causal)
    else:
        with _KERNEL_LOCK, sdpa_kernel(kernels):
            output = _call(inputs, mask, causal)
    if output.is_cpu and not torch.compiler.is_compiling() and _may_hide_nan(inputs, output):
        return eager.attend(replace(inputs, prepared=None), NoOptions())
    return AttentionOutput(select_rows(output, rows))


def _may_hide_nan(inputs: AttentionInputs, output: Tensor) -> bool:
    """Whether a kernel of the CPU may have given zeros to a query whose scores are NaN or infinite.

    Zeros are also right where all values are zero; `eager` then gives them again. The first feature of the output tells almost
    always that there are none, and is read in microseconds. Dropout makes zeros too, and must not be drawn twice.
    """
    return not inputs.dropout and _can_be_read(output) and not bool(output[..., 0].all()) and not bool(output.any(-1).all())


def _can_be_read(output: Tensor) -> bool:
    """Whether the numbers of a tensor may decide what runs: not in a transform (`torch.func`), a tracer or a mode."""
    return (
        type(output) is Tensor
        and peek_interpreter_stack() is None
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._get_tracing_state() is None
    )


def _call(inputs: AttentionInputs, mask: Tensor | None, causal: bool) -> Tensor:
    query, key, value = inputs.query, inputs.key, inputs.value
    grouped = query.shape[1] != key.shape[1]
    if (
        grouped
        and query.is_cpu
        and query.dtype in HALF
        and torch.is_grad_enabled()
        and (key.requires_grad or value.requires_grad)
    ):
        # The kernel adds the gradients of a group of heads up in 16 bits: 1 % is lost for 129 heads. autograd adds in float32.
        key, value, grouped = expand_heads(key, query.shape[1]), expand_heads(value, query.shape[1]), False
    return scaled_dot_product_attention(query, key, value, mask, inputs.dropout, causal, scale=inputs.scale, enable_gqa=grouped)


def _kernels(options: SdpaOptions, mask: Tensor | None, query: Tensor) -> list[SDPBackend] | None:
    """The kernels that torch may choose from; None for all.

    On CUDA a call with a mask does not use cuDNN: since torch 2.11 it can give NaN gradients
    (https://github.com/pytorch/pytorch/issues/196678). Only the math kernel is exact for a mask of another float dtype than the
    query's, such as ALiBi's float32 mask of a bfloat16 call (https://github.com/pytorch/pytorch/pull/191612).
    """
    if options.kernel != "default":
        return KERNELS[options.kernel]
    if mask is None or not query.is_cuda:
        return None
    exact = mask.dtype in (torch.bool, query.dtype)
    return SAFE_WITH_MASK if exact else KERNELS["math"]


def _render(mask: Mask, bias: Bias | None, shapes: Shapes) -> Rendered:
    rows = queries_that_see(mask, shapes)
    if rows is not None:
        mask = _without_query_lengths(mask, shapes)
    if bias is None and _is_square_causal(mask, shapes):
        return None, True, rows
    visible_pairs = visible(mask, shapes)
    if visible_pairs is not None and not no_fully_masked_row(mask):
        visible_pairs, not_empty = unmask_empty_rows(visible_pairs)
        rows = not_empty if rows is None else rows & not_empty
    if bias is None:
        return _whole_keys(visible_pairs, shapes), False, rows
    added = dense_bias(bias, mask.offset, shapes)
    if accumulation(shapes.dtype) == torch.float64:
        added = added.to(torch.float64)
    return _whole_keys(added if visible_pairs is None else torch.where(visible_pairs, added, -torch.inf), shapes), False, rows


def _simplified(rendered: Rendered, dtype: torch.dtype) -> Rendered:
    """Converts a bool mask to the kernel's float mask, and removes a mask that hides no key and a selection of all rows.

    Every layer would repeat this otherwise. The output is equal bit for bit.
    """
    mask, causal, rows = rendered
    if mask is not None and mask.dtype == torch.bool:
        if bool(mask.all()):
            return None, causal, rows
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    return mask, causal, None if rows is None or bool(rows.all()) else rows


def _without_query_lengths(mask: Mask, shapes: Shapes) -> Mask:
    """The mask without query lengths. With equal key lengths, causality from position 0 already hides the padding."""
    if mask.query_lengths is mask.key_lengths and _is_square_causal(
        replace(mask, query_lengths=None, key_lengths=None), shapes
    ):
        return replace(mask, query_lengths=None, key_lengths=None)
    return replace(mask, query_lengths=None)


def _is_square_causal(mask: Mask, shapes: Shapes) -> bool:
    """Whether the kernel's `is_causal` is the whole mask."""
    others = (mask.window, mask.key_lengths, mask.key_visible, mask.query_segments, mask.visible)
    return (
        mask.causal
        and not isinstance(mask.offset, Tensor)
        and all(term is None for term in others)
        and always(mask.offset == 0)
        and always(shapes.queries == shapes.keys)
    )


def _whole_keys(rendered: Tensor | None, shapes: Shapes) -> Tensor | None:
    """Expands a mask that broadcasts over the keys: kernels need stride 1 in its last axis."""
    if rendered is None or rendered.shape[-1] == shapes.keys:
        return rendered
    return rendered.expand(*rendered.shape[:-1], shapes.keys).contiguous()
