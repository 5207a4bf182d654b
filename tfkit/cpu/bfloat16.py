"""Linear maps with bfloat16 weights and activations: y_rj = round(sum_k round(x_rk) round(w_jk)) + b_j

bfloat16 has the range of float32 and 8 bits of precision, so nothing needs a scale. The sum is float32 and is rounded to
bfloat16 once; the bias is added in float32. oneDNN multiplies, with a packed weight (packed_weight.py).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from . import products
from .int8 import capabilities

INSTRUCTIONS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16"}
"""Products of bfloat16 by instruction set, as `torch.cpu.get_capabilities` names them. Without one, float32 is faster."""
PROBED = ((48, 41), (40, 130), (96, 256), (512, 128), (1024, 130), (130, 1024), (16, 1025))
"""Weights (out, in) of which the products are examined before the kernel is used."""
ROWS, PARTS = 80, ((0, 1), (3, 5), (7, 24), (16, 19), (24, 80))
"""Rows of such a product, and parts of them that are computed alone."""


class Bfloat16Weight:
    """A weight (out, in) in bfloat16.

    Args:
        weight: (out, in) float32.
    """

    def __init__(self, weight: Tensor) -> None:
        self.how, self.outer = "bfloat16", weight.shape[0]
        assert products.PACK is not None
        self.packed = products.PACK(weight.detach().bfloat16(), None)

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + b. Numbers above 3.38e38 become infinite.

        Args:
            x: (N, in) float32.
            bias: (out,), or None.

        Returns:
            (N, out) float32
        """
        if not x.numel():
            return x.new_zeros(len(x), self.outer)
        y = products.product(x.bfloat16(), self.packed).float()
        return y if bias is None else y.add_(bias)


@cache
def bfloat16_kernel_here() -> str | None:
    """How bfloat16 products are computed here; None if this processor has no instructions for them, or this torch no kernel."""
    instructions = capabilities()
    named = next((words for instruction, words in INSTRUCTIONS.items() if instructions.get(instruction)), None)
    return f"oneDNN with {named}" if named and is_right() else None


def is_right() -> bool:
    """Whether products are sums in float32, and a row has the same bits alone and in a batch."""
    if products.PACK is None or products.MULTIPLY is None:
        return False
    generator = torch.Generator().manual_seed(0)
    try:
        for outer, inner in PROBED:
            # Sums of 41 or more numbers near 1 need more than the 8 bits of bfloat16.
            weight, x = torch.ones(outer, inner, device="cpu"), 1 + torch.rand(ROWS, inner, generator=generator, device="cpu")
            together = Bfloat16Weight(weight).product(x)
            wanted = (x.bfloat16().double() @ weight.t().double()).float()
            if not bool(((together - wanted).abs() <= 2**-7 * wanted).all()):
                return False
            alone = [Bfloat16Weight(weight).product(x[first:last]) for first, last in PARTS]
            if not torch.equal(torch.cat(alone), torch.cat([together[first:last] for first, last in PARTS])):
                return False
    except (RuntimeError, TypeError, ValueError):
        return False
    return True
