"""Value residuals of ResFormer, Zhou et al. 2024, section 3.2 (https://arxiv.org/abs/2410.17897): v = a v_1 + b v_n

v_1 are the values of the first layer and v_n those of the layer itself. a and b are learned and start at 1/2, or stay there.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ValueResidual(nn.Module):
    """(B, G, K, V), (B, G, K, V) -> (B, G, K, V): a * first + b * value.

    Args:
        learned: a and b are the two numbers of `weight`; otherwise both are 1/2.
    """

    def __init__(self, learned: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), 0.5)) if learned else None

    def forward(self, first: Float[Tensor, "B G K V"], value: Float[Tensor, "B G K V"]) -> Float[Tensor, "B G K V"]:
        if self.weight is None:
            return 0.5 * (first + value)
        weight = self.weight.to(value.dtype)
        return weight[0] * first + weight[1] * value
