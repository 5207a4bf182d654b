"""Mish, Misra 2019 (https://arxiv.org/abs/1908.08681):

f(x) = x tanh(ln(1 + e^x))

Half dtypes are computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tfkit.plugin import NoOptions


def mish(x: Tensor, options: NoOptions) -> Tensor:
    """Elementwise, in the shape and the dtype of x."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return functional.mish(wide).to(x.dtype)
