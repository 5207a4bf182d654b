"""Dropout, Srivastava et al. 2014: x keep / (1 - p), keep ~ Bernoulli(1 - p) for every number

torch draws one number after the other on a CPU. Here each 64 bits of torch's generator decide two numbers, which takes a third
of the time; `p` is met to within 2^-32. https://jmlr.org/papers/v15/srivastava14a.html
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """On any shape; what is not a number on a CPU, and what is compiled, torch draws itself."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not 0.0 < self.p < 1.0 or self.inplace or not input.is_cpu or torch.compiler.is_compiling():
            return super().forward(input)
        count = input.numel()
        # `random_` draws all 64 bits where it is given no upper end.
        bits = torch.empty((count + 1) // 2, dtype=torch.int64).random_(-(2**63), None).view(torch.int32)[:count]
        keep = bits >= round(self.p * 2**32) - 2**31
        return input * keep.view(input.shape).to(input.dtype).mul_(1 / (1 - self.p))
