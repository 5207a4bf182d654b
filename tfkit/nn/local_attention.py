"""Local attention with a predicted position, local-p of Luong et al. 2015, section 3.2 (https://arxiv.org/abs/1508.04025):

    p = S sigmoid(v . tanh(W q))                                    S real keys, at the places 1 .. S
    weight_s = softmax(score)_s g_s,   g_s = exp(-(s - p)^2 / (2 sigma^2)),   sigma = D / 2

The softmax is over the keys with |s - p| <= D. The weights add up to less than 1, so g is no bias of the softmax alone. Here
every key comes twice: with its value and the bias log g, and with the value zero and the bias log(1 - g). The denominator is
then that of the softmax without g, and every backend that serves a dense bias and a `visible` mask serves local attention.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..attention.rendering import shapes_of, visible
from ..attention.types import AttentionInputs, DenseBias, Mask

NEAR = 1e-12
"""Least squared distance of a key from the centre in the bias log(1 - g), which is infinite at 0."""


class LocalCentre(nn.Module):
    """The centre p of a query's window.

    Args:
        d_query: features of a query, and of the hidden layer.
        half_width: D, the largest distance of a key from the centre.
    """

    def __init__(self, d_query: int, half_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_query, d_query, bias=False)
        self.out = nn.Linear(d_query, 1, bias=False)
        self.half_width = half_width

    def forward(self, query: Tensor, lengths: Tensor) -> Tensor:
        """Queries (B, H, Q, D) and numbers of real keys, broadcastable to (B, H, Q, 1), to centres (B, H, Q, 1)."""
        dtype = next((parameter.dtype for parameter in self.parameters()), torch.float32)  # quantised: no parameters
        hidden = torch.tanh(self.query(query.to(dtype)))
        return lengths * torch.sigmoid(self.out(hidden))


def with_local(inputs: AttentionInputs, centre: LocalCentre, query: Tensor) -> AttentionInputs:
    """The same call with local attention.

    Args:
        inputs: query (B, H, Q, D), key (B, G, K, E) and value (B, G, K, V), without a bias.
        centre: predicts the centres.
        query: (B, H, Q, D), what it reads.

    Returns:
        The call with 2 K keys; the attention weights of the first K are those of local attention.
    """
    shapes = shapes_of(inputs)
    visible_pairs = visible(inputs.mask, shapes)
    if visible_pairs is None:
        visible_pairs = torch.ones(1, 1, 1, shapes.keys, dtype=torch.bool, device=query.device)
    visible_pairs = visible_pairs.expand(-1, -1, -1, shapes.keys)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    places = visible_pairs.cumsum(3).to(dtype)  # (B|1, 1, Q|1, K)
    distance = places - centre(query, places[..., -1:]).to(dtype)  # (B, H, Q, K)
    width = float(centre.half_width)
    near = visible_pairs & (distance.abs() <= width)
    gaussian = -2.0 / width**2 * (distance * distance).clamp(min=NEAR)  # sigma = D / 2
    bias = torch.cat([gaussian, torch.log(-torch.expm1(gaussian))], 3)
    return replace(
        inputs,
        key=torch.cat([inputs.key, inputs.key], 2),
        value=torch.cat([inputs.value, torch.zeros_like(inputs.value)], 2),
        mask=Mask(visible=torch.cat([near, near], 3)),
        bias=DenseBias(bias),
    )
