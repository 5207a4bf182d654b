"""Attention sinks of gpt-oss (https://arxiv.org/abs/2508.10925): one learned logit per head joins the softmax's denominator.

    weight_j = exp(score_j) / (exp(sink_h) + sum_k exp(score_k))

This is attention over one more key with the bias sink_h. The key is zero, so its score is zero before the bias, with a softcap
too; its value is zero, so the output needs no correction. Every backend that serves a dense bias and a `visible` mask serves
a sink, in the accuracy that it declares. The other form, output * sigmoid(lse - sink), needs a differentiable log-sum-exp. The
contract promises none, `sdpa` returns none, and a float32 log-sum-exp would limit float64 models.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.rendering import dense_bias, shapes_of, visible
from ..attention.types import AttentionInputs, Bias, DenseBias, Mask, Shapes


def with_sink(
    inputs: AttentionInputs, sink: Float[Tensor, " H"], memo: dict[Hashable, Any], mask_name: Hashable
) -> AttentionInputs:
    """The same call with the sink as its last key.

    Args:
        inputs: query (B, H, Q, D), key (B, G, K, D) and value (B, G, K, V).
        sink: (H,), the logit of each head.
        memo: keeps the mask for all layers of a stack.
        mask_name: the key of the mask in the memo.

    Returns:
        The call with K + 1 keys, its mask as one `visible` term and its bias dense.
    """
    shapes = shapes_of(inputs)
    key = ("sink", mask_name)
    if key not in memo:
        memo[key] = _mask(inputs.mask, shapes)
    return replace(
        inputs,
        key=_with_zero(inputs.key),
        value=_with_zero(inputs.value),
        mask=memo[key],
        bias=_bias(inputs.bias, sink, inputs.mask, shapes),
    )


def _with_zero(tensor: Tensor) -> Tensor:
    """(B, G, K, N) -> (B, G, K + 1, N)"""
    return torch.cat([tensor, torch.zeros_like(tensor[:, :, :1])], 2)


def _mask(mask: Mask, shapes: Shapes) -> Mask:
    """Every query sees the sink, one that sees no other key too. Its output is then the value of the sink, zero."""
    visible_pairs = visible(mask, shapes)  # (B|1, H|1, Q|1, K|1)
    if visible_pairs is None:
        return Mask()
    visible_pairs = visible_pairs.expand(-1, -1, -1, shapes.keys)
    return Mask(visible=torch.cat([visible_pairs, torch.ones_like(visible_pairs[..., :1])], 3))


def _bias(bias: Bias | None, sink: Tensor, mask: Mask, shapes: Shapes) -> DenseBias:
    column = sink.view(1, -1, 1, 1)
    if bias is None:
        return DenseBias(torch.cat([column.new_zeros(1, shapes.heads, 1, shapes.keys), column], 3))
    values = dense_bias(bias, mask.offset, shapes)  # (B|1, H|1, Q|1, K|1)
    values = values.expand(values.shape[0], shapes.heads, values.shape[2], shapes.keys)
    return DenseBias(torch.cat([values, column.expand(values.shape[0], -1, values.shape[2], -1)], 3))
