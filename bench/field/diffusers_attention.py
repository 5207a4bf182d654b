"""diffusers: the processors of its Attention module, and its dispatcher. bench/field_report.py runs them."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0, SlicedAttnProcessor
from splitting import Part, heads, joined
from torch import Tensor


def run(processor: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The module with `encoder_hidden_states` = [key | value]."""
    H, D = query.shape[1], query.shape[3]
    if key.shape[1] != H or value.shape[3] != D:
        raise NotImplementedError("the module has one head count and one head dim")
    if mask is not None and mask.shape[1] != 1:
        raise NotImplementedError("the module takes one mask for all heads")
    width, memory = H * D, torch.cat([joined(key), joined(value)], -1)
    with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are replaced
        module = Attention(width, 2 * width, heads=H, dim_head=D, out_bias=False, processor=processor)
    module.to_q, module.to_k, module.to_v, module.to_out[0] = (Part(start, width) for start in (0, 0, width, 0))
    if mask is not None:
        mask = mask[:, 0].expand(len(query), -1, -1)
    return heads(module(joined(query), memory, mask), H)


def plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """AttnProcessor."""
    return run(AttnProcessor(), query, key, value, mask)


def sliced(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """SlicedAttnProcessor, two rows at a time."""
    return run(SlicedAttnProcessor(2), query, key, value, mask)


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """AttnProcessor2_0."""
    return run(AttnProcessor2_0(), query, key, value, mask)


def dispatched(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
               is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """dispatch_attention_fn with the backend "native"; its tensors are (B, S, H, D)."""
    inputs = (each.transpose(1, 2) for each in (query, key, value))
    output = dispatch_attention_fn(*inputs, attn_mask, dropout_p, is_causal, scale, enable_gqa, backend="native")
    return output.transpose(1, 2)
