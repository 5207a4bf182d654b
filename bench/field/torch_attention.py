"""torch: FlexAttention, and nn.MultiheadAttention by each of its three ways. The command bench/field_report.py runs them."""

from __future__ import annotations

from unittest.mock import patch

import torch
from splitting import heads, joined, selects, square
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention


def flex(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, scale: float | None = None,
         enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """FlexAttention without compilation; the mask is a `score_mod`."""
    if attn_mask is None:
        return flex_attention(query, key, value, scale=scale, enable_gqa=enable_gqa)
    mask = attn_mask.expand(*query.shape[:3], key.shape[2])

    def modified(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        element = mask[b, h, q, k]
        return torch.where(element, score, -torch.inf) if mask.dtype == torch.bool else score + element

    return flex_attention(query, key, value, modified, scale=scale, enable_gqa=enable_gqa)


def module(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, weights: bool, dropout: float) -> Tensor:
    """The function of nn.MultiheadAttention, with projections that are the identity."""
    H, width = query.shape[1], query.shape[1] * query.shape[3]
    if key.shape[1] != H or value.shape[3] != query.shape[3]:
        raise NotImplementedError("nn.MultiheadAttention has one head count and one head dim")
    mask = None if attn_mask is None else attn_mask.expand(*query.shape[:3], key.shape[2]).flatten(0, 1)
    if mask is not None and mask.dtype == torch.bool:
        mask = ~mask  # True hides in this module
    weight = query.new_zeros(width, width)
    with patch.object(functional, "linear", lambda x, weight, bias=None: x.contiguous()):  # all projections are the identity
        output, _ = functional.multi_head_attention_forward(
            *(joined(each).transpose(0, 1) for each in (query, key, value)), width, H, None, None, None, None, False, dropout,
            weight, None, need_weights=weights, attn_mask=mask, use_separate_proj_weight=True,
            q_proj_weight=weight, k_proj_weight=weight, v_proj_weight=weight,
        )  # fmt: skip
    return heads(output.transpose(0, 1), H)


def module_sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0) -> Tensor:
    """nn.MultiheadAttention with need_weights=False."""
    return module(query, key, value, attn_mask, False, dropout_p)


def module_weights(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0
) -> Tensor:
    """nn.MultiheadAttention with need_weights=True, its own softmax."""
    return module(query, key, value, attn_mask, True, dropout_p)


def module_fast(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """The fast path of nn.MultiheadAttention: self-attention of x = [query | key | value] in 3 H heads, of which H are used."""
    B, H, Q, D = query.shape
    if key.shape[1] != H or value.shape[3] != D:
        raise NotImplementedError("the module has one head count and one head dim")
    if any(each.requires_grad for each in (query, key, value)):
        raise NotImplementedError("the fast path has no gradient")
    query, key, value, attn_mask = square(query, key, value, attn_mask)
    x, part = torch.cat([joined(each) for each in (query, key, value)], -1), H * D
    weight = torch.cat([functional.pad(selects(part, 3 * part, n * part, x), (0, 0, 0, 2 * part)) for n in range(3)])
    mask = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = functional.pad(~attn_mask.expand(B, H, *attn_mask.shape[2:]), (0, 0, 0, 0, 0, 2 * H)).contiguous()
    elif attn_mask is not None:
        raise NotImplementedError("the fast path takes a mask of bool only")
    output, _ = torch._native_multi_head_attention(
        x, x, x, 3 * part, 3 * H, weight, x.new_zeros(9 * part), selects(3 * part, 3 * part, 0, x), x.new_zeros(3 * part),
        mask, False, True, 2 if mask is not None else None,
    )  # fmt: skip
    return heads(output[..., :part], H)[:, :, :Q]
