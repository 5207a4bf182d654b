"""Attention one block of keys at a time, with the online softmax (https://arxiv.org/abs/1805.02867, algorithm 3):

    m' = max(m, max_j s_j)      l' = l e^(m - m') + sum_j e^(s_j - m')      a' = a e^(m - m') + sum_j e^(s_j - m') v_j

over the keys j of each block, from m = -inf, l = 0, a = 0; in the end output = a / l, lse = m + ln l. Without gradients, only
the scores of one block exist at a time. The backward pass is autograd's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.plugin import (
    AttentionInputs,
    AttentionOutput,
    accumulation,
    dense_bias,
    expand_heads,
    require_capabilities,
    select_rows,
    shapes_of,
    unmask_empty_rows,
    visible,
)

from . import ONLINE, OnlineOptions

check = require_capabilities(ONLINE.name, ONLINE.capabilities)


def attend(inputs: AttentionInputs, options: OnlineOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    check(inputs)
    shapes = shapes_of(inputs)
    wide = accumulation(inputs.query.dtype)
    query = inputs.scale * inputs.query.to(wide)
    key, value = (expand_heads(tensor.to(wide), shapes.heads) for tensor in (inputs.key, inputs.value))
    bias = None if inputs.bias is None else dense_bias(inputs.bias, inputs.mask.offset, shapes)
    visible_pairs, rows = visible(inputs.mask, shapes), None
    if visible_pairs is not None:
        visible_pairs, rows = unmask_empty_rows(visible_pairs)

    highest = query.new_full((*query.shape[:3], 1), -torch.inf)
    total = torch.zeros_like(highest)
    output = query.new_zeros(*query.shape[:3], value.shape[3])
    for start in range(0, shapes.keys, options.block):
        block = slice(start, start + options.block)
        scores = query @ key[:, :, block].mT
        if inputs.softcap is not None:
            scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
        if bias is not None:
            scores = scores + _keys(bias, block)
        if visible_pairs is not None:
            scores = scores.masked_fill(~_keys(visible_pairs, block), -torch.inf)
        higher = torch.maximum(highest, scores.detach().amax(-1, keepdim=True))
        level = torch.where(higher.isinf(), 0.0, higher)  # a block may hide all its keys from a row before it has seen any
        shrink = torch.exp(highest - level)
        weights = torch.exp(scores - level)
        total = total * shrink + weights.sum(-1, keepdim=True)
        output = output * shrink + weights @ value[:, :, block]
        highest = higher

    lse = select_rows(highest + torch.log(total), rows, masked=-torch.inf).squeeze(-1).float() if inputs.return_lse else None
    return AttentionOutput(select_rows(output / total, rows).to(inputs.query.dtype), lse=lse)


def _keys(rendered: Tensor, block: slice) -> Tensor:
    """A block of the last axis; an axis of size 1 speaks of every key."""
    return rendered if rendered.shape[-1] == 1 else rendered[..., block]
