"""Attention by torch.nn.attention.flex_attention (https://arxiv.org/abs/2412.05496): masks and biases as index functions.

    scores[b,h,i,j] = modify(scale * q_i . k_j)         softcap, then the bias computed from b, h, i, j
    visible         = first[b,i] <= j <= last[b,i]      causal, window, lengths and offset together are one interval of keys
                      and shown[b,h,i,j]                the other terms: key visibility, segments, `visible`

On CUDA the kernel is compiled at its first use and skips fully masked blocks. A block mask costs milliseconds, so a stack
builds it once (`prepare`). On a CPU torch's unfused form runs, forward only: the form compiled for the CPU is not reliable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from ...attention.rendering import no_fully_masked_row
from ...plugin import (
    AttentionInputs,
    AttentionOutput,
    Bias,
    DenseBias,
    LinearBias,
    Mask,
    Prepared,
    Shapes,
    accumulation,
    require_capabilities,
    select_rows,
    shapes_of,
    visible,
)
from .entries import FLEX, FlexOptions

Modification = Callable[..., Tensor]
Rendered = tuple[BlockMask | None, Tensor | None]
"""The block mask, and the rows that see a key."""

check = require_capabilities(FLEX.name, FLEX.capabilities)

RECOMPILES = 1 << 20
"""The limit of recompilations. torch counts each new dtype, head count and bias kind as one, and its default limit is 8."""


def prepare(mask: Mask, bias: Bias | None, shapes: Shapes, options: FlexOptions) -> Prepared:
    """Build the block mask once, for all layers of a stack; the bias is computed in the kernel and needs no rendering."""
    return Prepared(_render(mask, shapes))


def attend(inputs: AttentionInputs, options: FlexOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    check(inputs)
    shapes = shapes_of(inputs)
    block_mask, rows = inputs.prepared.payload if inputs.prepared is not None else _render(inputs.mask, shapes)
    output, extra = _kernel(inputs.query.device.type)(
        inputs.query,
        inputs.key,
        inputs.value,
        score_mod=_score_modification(inputs, shapes),
        block_mask=block_mask,
        scale=inputs.scale,
        enable_gqa=inputs.query.shape[1] != inputs.key.shape[1],
        return_aux=AuxRequest(lse=True),
        kernel_options=None if options.kernel == "default" else {"BACKEND": options.kernel.upper()},
    )
    # Scores of -inf alone have no softmax. The kernel takes them for hidden ones and gives zeros.
    output = torch.where(extra.lse.detach().isneginf()[..., None], torch.nan, output)
    lse = None
    if inputs.return_lse:  # the contract requires float32; the kernel returns float64 for float64 queries
        lse = select_rows(extra.lse, None if rows is None else rows.squeeze(-1), masked=-torch.inf).float()
    return AttentionOutput(select_rows(output, rows), lse=lse)


def _kernel(device: str) -> Callable[..., Any]:
    if torch.compiler.is_compiling():
        return flex_attention
    return _unfused if device == "cpu" else _fused


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention)


def _fused(*tensors: Tensor, **call: Any) -> Any:
    """Calls the compiled kernel. Beyond its recompilation limit torch would run the unfused form without a warning."""
    with torch._dynamo.config.patch(recompile_limit=RECOMPILES, accumulated_recompile_limit=RECOMPILES):
        return _compiled()(*tensors, **call)


def _unfused(*tensors: Tensor, **call: Any) -> Any:
    with warnings.catch_warnings(), torch._dynamo.config.patch(recompile_limit=RECOMPILES):
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        kernel: Callable[..., Any] = flex_attention
        return kernel(*tensors, **call)


def _render(mask: Mask, shapes: Shapes) -> Rendered:
    if not mask.terms():
        return None, None
    first, last = _interval(mask, shapes)
    visible_pairs = visible(replace(mask, causal=False, window=None, offset=None, key_lengths=None, query_lengths=None), shapes)
    # (B|1, H|1, ...): one block mask serves all rows or heads of size 1
    wide = visible_pairs if visible_pairs is not None else first[:, None]
    block_mask = create_block_mask(
        _mask_modification(first, last, visible_pairs, shapes),
        None if max(first.shape[0], last.shape[0], wide.shape[0]) == 1 else shapes.batch,
        None if wide.shape[1] == 1 else shapes.heads,
        shapes.queries,
        shapes.keys,
        device=shapes.device,
    )
    whole = None if no_fully_masked_row(mask) else visible(mask, shapes)
    return block_mask, None if whole is None else whole.any(-1, keepdim=True)


def _interval(mask: Mask, shapes: Shapes) -> tuple[Tensor, Tensor]:
    """The first and the last key that each query may see: integers (B|1, Q) each; last < first if it sees none."""
    queries = torch.arange(shapes.queries, device=shapes.device)
    first, last = torch.zeros_like(queries)[None], torch.full_like(queries, shapes.keys - 1)[None]
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    if left is not None or right is not None:
        position = _offsets(mask, shapes)[:, None] + queries
        first = first if left is None else (position - left).clamp(min=0)
        last = last if right is None else (position + right).clamp(max=shapes.keys - 1)
    if mask.key_lengths is not None:
        last = torch.minimum(last, mask.key_lengths[:, None] - 1)
    if mask.query_lengths is not None:
        last = torch.where(queries < mask.query_lengths[:, None], last, -1)
    return first, last


def _offsets(mask: Mask, shapes: Shapes) -> Tensor:
    """The offset of every batch row (B,). An integer becomes a tensor, so that a new offset needs no recompilation."""
    if isinstance(mask.offset, Tensor):
        return mask.offset
    return torch.full((shapes.batch,), mask.offset or 0, device=shapes.device)


def _mask_modification(first: Tensor, last: Tensor, visible_pairs: Tensor | None, shapes: Shapes) -> Modification:
    first, last = first.expand(shapes.batch, -1), last.expand(shapes.batch, -1)

    def inside(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (first[b, i] <= j) & (j <= last[b, i])

    if visible_pairs is None:
        return inside
    everywhere = visible_pairs.expand(shapes.batch, shapes.heads, shapes.queries, shapes.keys)

    def inside_and_shown(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return inside(b, h, i, j) & everywhere[b, h, i, j]

    return inside_and_shown


def _score_modification(inputs: AttentionInputs, shapes: Shapes) -> Modification | None:
    """softcap, then the bias; None where a call has neither."""
    softcap, added = inputs.softcap, _bias_at(inputs.bias, inputs.mask, shapes)
    if softcap is None and added is None:
        return None

    def modify(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if added is None else score + added(b, h, i, j)

    return modify


def _bias_at(bias: Bias | None, mask: Mask, shapes: Shapes) -> Modification | None:
    """The bias as a function of batch row, head, query and key."""
    if bias is None:
        return None
    if isinstance(bias, DenseBias):
        dense = bias.values.expand(shapes.batch, shapes.heads, shapes.queries, shapes.keys)
        return lambda b, h, i, j: dense[b, h, i, j]
    offsets = _offsets(mask, shapes)
    if isinstance(bias, LinearBias):
        slopes = bias.slopes.to(accumulation(shapes.dtype))
        return lambda b, h, i, j: -slopes[h] * (j - (offsets[b] + i)).abs()
    values, low, top = bias.values, bias.low, bias.values.shape[1] - 1
    return lambda b, h, i, j: values[h, (j - (offsets[b] + i) - low).clamp(0, top)]
