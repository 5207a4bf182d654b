"""x-transformers, memory-efficient-attention-pytorch and ring-attention-pytorch. bench/field_report.py runs them."""

from __future__ import annotations

import torch
from memory_efficient_attention_pytorch.flash_attention import FlashAttentionFunction
from ring_attention_pytorch import ring_flash_attn
from torch import Tensor
from x_transformers.attend import Attend


def tiled(tensor: Tensor, groups: int) -> Tensor:
    """(B, H, ...) with the heads in the order of these libraries: query head h reads key head h % G."""
    return tensor.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def attend(module: Attend, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **words: bool) -> Tensor:
    """x-transformers' module on a call in the usual order of heads."""
    H, G = query.shape[1], key.shape[1]
    if attn_mask is not None and attn_mask.shape[1] == H:
        attn_mask = tiled(attn_mask, G)
    mask, bias = (attn_mask, None) if attn_mask is None or attn_mask.dtype == torch.bool else (None, attn_mask)
    if bias is not None:
        bias = bias.expand(*query.shape[:3], key.shape[2])
    output = module(tiled(query, G), key, value, mask=mask, attn_bias=bias, **words)[0]
    return tiled(output, H // G)


def attend_plain(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                 scale: float | None = None) -> Tensor:  # fmt: skip
    """Attend without flash."""
    return attend(Attend(dropout=dropout_p, scale=scale), query, key, value, attn_mask)


def attend_flash(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                 scale: float | None = None) -> Tensor:  # fmt: skip
    """Attend with flash."""
    return attend(Attend(flash=True, dropout=dropout_p, scale=scale), query, key, value, attn_mask)


def attend_causal(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Attend with `causal` in its constructor."""
    return attend(Attend(causal=causal), *(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2)


def attend_flash_causal(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Attend with flash and `causal` in its constructor."""
    return attend(Attend(causal=causal, flash=True), *(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2)


def attend_flash_call(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Attend with flash and `causal` in its call."""
    return attend(Attend(flash=True), *(each.transpose(1, 2) for each in (q, k, v)), causal=causal).transpose(1, 2)


def tiles(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """memory-efficient-attention-pytorch's FlashAttentionFunction in tiles of 64 queries and 128 keys."""
    inputs = (each.transpose(1, 2) for each in (q, k, v))
    return FlashAttentionFunction.apply(*inputs, None, causal, 64, 128).transpose(1, 2)


def tiles_mask(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """The same function with a mask of bool."""
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        raise NotImplementedError("it takes a mask of bool only")
    mask = None if attn_mask is None else attn_mask.expand(*query.shape[:3], key.shape[2])
    return FlashAttentionFunction.apply(query, key, value, mask, False, 64, 128)


def ring(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """ring-attention-pytorch's ring_flash_attn in one process, in buckets of 64."""
    H, G = q.shape[2], k.shape[2]
    output = ring_flash_attn(tiled(q.transpose(1, 2), G).transpose(1, 2), k, v, causal=causal, bucket_size=64, ring_size=1)
    return tiled(output.transpose(1, 2), H // G).transpose(1, 2)
