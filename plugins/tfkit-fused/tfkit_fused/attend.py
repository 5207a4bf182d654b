"""The contract's call, checked and split into the arguments of the operator."""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.plugin import (
    AttentionInputs,
    AttentionOutput,
    BackendRefused,
    Bias,
    DenseBias,
    Diagnostic,
    DistanceBias,
    LinearBias,
    require_capabilities,
)

from . import ATOMIC, FUSED, INTERPRETED, FusedOptions
from .checks import check_call
from .operator import attended as operator

refuse = require_capabilities(FUSED.name, FUSED.capabilities)
refuse_atomic = require_capabilities(ATOMIC.name, ATOMIC.capabilities)


def attend(inputs: AttentionInputs, options: FusedOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V).

    Raises BackendRefused for what is not declared and InputError for tensors that do not fit together, before any launch.
    """
    refuse(inputs)
    return _attended(inputs, options, False)


def attend_atomic(inputs: AttentionInputs, options: FusedOptions) -> AttentionOutput:
    """The same, with a backward that adds the gradient of queries by atomics, unless torch uses deterministic algorithms."""
    refuse_atomic(inputs)
    return _attended(inputs, options, True)


def _attended(inputs: AttentionInputs, options: FusedOptions, atomic: bool) -> AttentionOutput:
    check_call(inputs)
    if INTERPRETED and inputs.query.dtype == torch.bfloat16 and not inputs.query.is_cuda:
        raise BackendRefused(Diagnostic("TFK060", "`fused`: Triton's interpreter computes wrongly in bfloat16", "use float16"))
    mask, bias = inputs.mask, inputs.bias
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    per_row = isinstance(mask.offset, Tensor)
    seed = torch.randint(2**31, (1,), device=inputs.query.device) if inputs.dropout > 0.0 else None
    offset = 0 if per_row or mask.offset is None else mask.offset
    low = bias.low if isinstance(bias, DistanceBias) else 0
    output, lse = operator(
        inputs.query, inputs.key, inputs.value, mask.offset.contiguous() if per_row else None, _dense(mask.key_lengths),
        _dense(mask.query_lengths), mask.key_visible, mask.query_segments, mask.key_segments, _expanded(mask.visible, inputs),
        _values(bias), seed, _kind(bias), low, offset, _side(left), _side(right), float(inputs.scale), inputs.softcap,
        float(inputs.dropout), options.tile_queries, options.tile_keys, options.tuned, atomic,
    )  # fmt: skip
    return AttentionOutput(output, lse=lse if inputs.return_lse else None)


FAR = 1 << 40
"""Windows are clamped to this: wider ones hide nothing more, and positions that they are added to stay within 64 bits."""


def _side(side: int | None) -> int | None:
    return None if side is None else max(-FAR, min(side, FAR))


def _dense(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _expanded(visible: Tensor | None, inputs: AttentionInputs) -> Tensor | None:
    """With the call's four axes; an axis that is shared has stride 0."""
    if visible is None:
        return None
    B, H, Q, _ = inputs.query.shape
    return visible.expand(B, H, Q, inputs.key.shape[2])


def _values(bias: Bias | None) -> Tensor | None:
    return bias.slopes if isinstance(bias, LinearBias) else bias.values if bias is not None else None


def _kind(bias: Bias | None) -> str:
    return "dense" if isinstance(bias, DenseBias) else "linear" if isinstance(bias, LinearBias) else "distance" if bias else ""
