"""The contract's call as calls of FlashAttention, whose tensors are (B, L, H, D), or (tokens, H, D) where packed.

The log-sum-exp has no gradient: versions 2 and 3 would take one and lose it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import (
    AttentionInputs,
    AttentionOutput,
    BackendRefused,
    Bias,
    Diagnostic,
    LinearBias,
    Mask,
    NoOptions,
    Prepared,
    Shapes,
    require_capabilities,
)
from tfkit.plugin.flash_calls import FlashCall, flash_calls, run_flash_calls

from . import V2, V3, V4

Result = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Kernel:
    """The functions of one version; a call gives output and log-sum-exp, (B, H, L) or packed (H, tokens)."""

    module: str
    options: Callable[[AttentionInputs, FlashCall], dict[str, Any]]

    def __call__(self, inputs: AttentionInputs, call: FlashCall, query: Tensor, key: Tensor, value: Tensor) -> Result:
        functions = import_module(self.module)
        options = self.options(inputs, call)
        if call.query_borders is None:
            returned = functions.flash_attn_func(query, key, value, **options)
        else:
            longest = (max(one.queries for one in call.sequences), max(one.keys for one in call.sequences))
            borders = (call.query_borders, call.key_borders)
            names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
            packed = dict(zip(names, (*borders, *longest), strict=True))
            returned = functions.flash_attn_varlen_func(query, key, value, **packed, **options)
        return (returned[0], returned[1]) if isinstance(returned, tuple) else (returned, None)


def _common(inputs: AttentionInputs, call: FlashCall, open_side: int | None) -> dict[str, Any]:
    left = open_side if call.left is None else call.left
    return {
        "softmax_scale": inputs.scale, "causal": call.causal, "window_size": (left, 0 if call.causal else open_side),
        "softcap": inputs.softcap or 0.0, "deterministic": torch.are_deterministic_algorithms_enabled(),
    }  # fmt: skip


def _options_v2(inputs: AttentionInputs, call: FlashCall) -> dict[str, Any]:
    slopes = inputs.bias.slopes if isinstance(inputs.bias, LinearBias) else None
    return {**_common(inputs, call, -1), "dropout_p": inputs.dropout, "alibi_slopes": slopes,
            "return_attn_probs": inputs.return_lse}  # fmt: skip


def _options_v3(inputs: AttentionInputs, call: FlashCall) -> dict[str, Any]:
    return {**_common(inputs, call, -1), "return_attn_probs": inputs.return_lse}


def _options_v4(inputs: AttentionInputs, call: FlashCall) -> dict[str, Any]:
    return {**_common(inputs, call, None), "return_lse": inputs.return_lse}


def prepare(mask: Mask, bias: Bias | None, shapes: Shapes, options: NoOptions) -> Prepared:
    """Cut the batch once, for all layers of a stack."""
    return Prepared(flash_calls(mask, shapes, single=bias is not None))


KERNELS = {
    V2.name: Kernel("flash_attn", _options_v2),
    V3.name: Kernel("flash_attn_interface", _options_v3),
    V4.name: Kernel("flash_attn.cute", _options_v4),
}
CHECKS = {entry.name: require_capabilities(entry.name, entry.capabilities) for entry in (V2, V3, V4)}


def attend_v2(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T - slopes distance, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,D) -> (B,H,Q,D).

    Raises BackendRefused for what is not declared."""
    CHECKS[V2.name](inputs)
    return run(V2.name, inputs)


def attend_v3(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T, masked) v, as `attend_v2`."""
    CHECKS[V3.name](inputs)
    return run(V3.name, inputs)


def attend_v4(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T, masked) v, as `attend_v2`."""
    CHECKS[V4.name](inputs)
    return run(V4.name, inputs)


def run(name: str, inputs: AttentionInputs) -> AttentionOutput:
    """The calls of a mask, put together. Raises BackendRefused for what no version does together."""
    _check_together(name, inputs)
    return run_flash_calls(inputs, KERNELS[name])


def _check_together(name: str, inputs: AttentionInputs) -> None:
    """The joint limits of the declaration that would give wrong numbers, for those who call directly."""
    mask, biased = inputs.mask, inputs.bias is not None
    scattered, window = mask.key_visible is not None, mask.window is not None
    for wrong, reason in (
        (biased and (not mask.causal or window or inputs.return_lse or scattered),
         "does ALiBi only where causal, without a window, hidden keys and the log-sum-exp"),
        (inputs.softcap is not None and inputs.dropout > 0.0, "has no dropout beside softcap"),
    ):  # fmt: skip
        if wrong:
            raise BackendRefused(Diagnostic("TFK060", f"`{name}` {reason}", "choose another backend"))
