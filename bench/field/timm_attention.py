"""timm's Attention module, both ways. bench/field_report.py runs them."""

from __future__ import annotations

import torch
from splitting import heads, joined, square
from torch import Tensor

# PyPI's torchvision needs CUDA's libraries. timm imports it, and the module uses none of its operators.
OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        OPERATORS.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")

from timm.layers.attention import Attention  # noqa: E402


def run(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, causal: bool, dropout: float, fused: bool
) -> Tensor:
    """The module on x = [query | key | value]."""
    H, D = query.shape[1], query.shape[3]
    Q = query.shape[2]
    if key.shape[1] != H or value.shape[3] != D:
        raise NotImplementedError("the module has one head count and one head dim")
    query, key, value, attn_mask = square(query, key, value, attn_mask, causal)
    x = torch.cat([joined(each) for each in (query, key, value)], -1)
    with torch.random.fork_rng(devices=[]):  # the weights that are drawn here are replaced
        module = Attention(3 * H * D, H, attn_head_dim=D, dim_out=H * D, attn_drop=dropout)
    module.fused_attn = fused
    module.qkv = module.proj = torch.nn.Identity()
    return heads(module(x, attn_mask, causal and attn_mask is None), H)[:, :, :Q]


def eager(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False,
          dropout_p: float = 0.0) -> Tensor:  # fmt: skip
    """Without fused attention."""
    return run(query, key, value, attn_mask, is_causal, dropout_p, fused=False)


def fused(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False,
          dropout_p: float = 0.0) -> Tensor:  # fmt: skip
    """With fused attention."""
    return run(query, key, value, attn_mask, is_causal, dropout_p, fused=True)
