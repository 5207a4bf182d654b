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
    shapes_of,
)

from . import V2, V3, V4
from .plan import Part, Plan, plan_of

Result = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Kernel:
    """The functions of one version; `call` gives output and log-sum-exp, (B, H, L) or packed (H, tokens)."""

    module: str
    options: Callable[[AttentionInputs, Part], dict[str, Any]]

    def call(self, inputs: AttentionInputs, part: Part, query: Tensor, key: Tensor, value: Tensor) -> Result:
        functions = import_module(self.module)
        options = self.options(inputs, part)
        if part.query_borders is None:
            found = functions.flash_attn_func(query, key, value, **options)
        else:
            longest = (max(one.queries for one in part.sequences), max(one.keys for one in part.sequences))
            borders = (part.query_borders, part.key_borders)
            names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
            packed = dict(zip(names, (*borders, *longest), strict=True))
            found = functions.flash_attn_varlen_func(query, key, value, **packed, **options)
        return (found[0], found[1]) if isinstance(found, tuple) else (found, None)


def _common(inputs: AttentionInputs, part: Part, open_side: int | None) -> dict[str, Any]:
    left = open_side if part.left is None else part.left
    return {
        "softmax_scale": inputs.scale, "causal": part.causal, "window_size": (left, 0 if part.causal else open_side),
        "softcap": inputs.softcap or 0.0, "deterministic": torch.are_deterministic_algorithms_enabled(),
    }  # fmt: skip


def _options_v2(inputs: AttentionInputs, part: Part) -> dict[str, Any]:
    slopes = inputs.bias.slopes if isinstance(inputs.bias, LinearBias) else None
    return {**_common(inputs, part, -1), "dropout_p": inputs.dropout, "alibi_slopes": slopes,
            "return_attn_probs": inputs.return_lse}  # fmt: skip


def _options_v3(inputs: AttentionInputs, part: Part) -> dict[str, Any]:
    return {**_common(inputs, part, -1), "return_attn_probs": inputs.return_lse}


def _options_v4(inputs: AttentionInputs, part: Part) -> dict[str, Any]:
    return {**_common(inputs, part, None), "return_lse": inputs.return_lse}


def prepare(mask: Mask, bias: Bias | None, shapes: Shapes, options: NoOptions) -> Prepared:
    """Cut the batch once, for all layers of a stack."""
    return Prepared(plan_of(mask, shapes, single=bias is not None))


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
    """The calls of a plan, put together. Raises BackendRefused for what no version does together."""
    _check_together(name, inputs)
    plan = inputs.prepared.payload if inputs.prepared is not None else None
    if plan is None or (inputs.bias is not None and not plan.single):
        plan = plan_of(inputs.mask, shapes_of(inputs), single=inputs.bias is not None)
    return _run(inputs, plan, KERNELS[name])


def _check_together(name: str, inputs: AttentionInputs) -> None:
    """The joint limits of the declaration that would give wrong numbers, for those who call directly."""
    mask, biased = inputs.mask, inputs.bias is not None
    scattered, window = mask.key_visible is not None, mask.window is not None
    for wrong, reason in (
        (biased and (not mask.causal or window or inputs.return_lse or scattered),
         "does ALiBi only where causal, without a window, hidden keys and the log-sum-exp"),
        (window and scattered, "has no window over keys of which some are hidden"),
        (inputs.softcap is not None and inputs.dropout > 0.0, "has no dropout beside softcap"),
    ):  # fmt: skip
        if wrong:
            raise BackendRefused(Diagnostic("TFK060", f"`{name}` {reason}", "choose another backend"))


def _run(inputs: AttentionInputs, plan: Plan, kernel: Kernel) -> AttentionOutput:
    B, H, Q, D = inputs.query.shape
    query, key, value = (_tokens_first(tensor) for tensor in (inputs.query, inputs.key, inputs.value))
    output = query.new_zeros(B, Q, H, D)
    lse = torch.full((B, Q, H), -torch.inf, device=query.device) if inputs.return_lse else None
    if not plan.parts:
        output = output + _nothing(query, key, value)
    for part in plan.parts:
        if part.query_index is None:
            [one] = part.sequences
            rows = slice(one.start, one.start + one.queries)
            found, found_lse = kernel.call(inputs, part, query[:, rows], key[:, : one.keys], value[:, : one.keys])
            output = found if one.queries == Q else torch.slice_scatter(output, found, 1, rows.start, rows.stop)
            if lse is not None and found_lse is not None:
                lse[:, rows] = found_lse.detach().transpose(1, 2)
        else:
            tokens = query.flatten(0, 1)[part.query_index]
            keys, values = (tensor.flatten(0, 1)[part.key_index] for tensor in (key, value))
            found, found_lse = kernel.call(inputs, part, tokens, keys, values)
            output = output.flatten(0, 1).index_copy(0, part.query_index, found).view(B, Q, H, D)
            if lse is not None and found_lse is not None:
                lse.view(B * Q, H)[part.query_index] = found_lse.detach().mT
    return AttentionOutput(output.transpose(1, 2), lse=None if lse is None else lse.transpose(1, 2))


def _tokens_first(tensor: Tensor) -> Tensor:
    """(B, H, L, D) as (B, L, H, D), its features side by side."""
    turned = tensor.transpose(1, 2)
    return turned if turned.stride(-1) == 1 else turned.contiguous()


def _nothing(*tensors: Tensor) -> Tensor:
    """Zero, with a gradient of zero for each tensor."""
    return torch.cat([tensor.flatten()[:0] for tensor in tensors]).sum()
