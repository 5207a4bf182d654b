"""Stochastic arithmetic: a computation in float64 whose every operation errs at random, as one in another dtype may.

Each result is multiplied by 1 + d, with independent d of mean 0 and variance u_d^2 / 3, that of a rounding to the dtype, and
for sums of n products n u_s^2 / 6 more: what the worst order of summing makes of them (`rounding`), with u_s the unit roundoff
of the dtype that sums, float32 for the half dtypes. The backward pass is met in the same way. One run is one sample of what
rounding may do to a correct evaluation, also where the rounding errors of one program happen to be equal and to cancel, as they
do in a plain float32 run: there the softmax's dP - D of nearly equal values loses nothing, and in another correct program it
does.

tanh errs by two units in the last place of 1, however small it is, as 2 sigmoid(2 x) - 1 does, a fast way to compute it.

Reference: Parker, Monte Carlo Arithmetic, 1997 (UCLA CSD-970002); Vignes, CESTAC, 1993.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..attention.bound import UNIT

PRODUCTS = {"mm": 1, "bmm": 2, "addmm": 1, "baddbmm": 2, "mv": 1, "dot": 0, "addmv": 1}
"""Operations that sum products, and the axis over which their first factor is summed."""
REDUCTIONS = {"sum", "mean", "var", "cumsum", "linalg_vector_norm", "prod", "std", "var_mean"}
EXACT = {
    "_to_copy", "abs", "alias", "amax", "amin", "as_strided_scatter", "cat", "clone", "constant_pad_nd", "copy", "copy_",
    "diagonal_scatter", "embedding", "embedding_dense_backward", "empty", "empty_like", "eye", "fill", "fill_", "flip", "full",
    "full_like", "gather", "index", "index_select", "isfinite", "masked_fill", "masked_fill_", "max", "maximum", "min",
    "minimum", "neg", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "relu",
    "repeat", "roll", "scalar_tensor", "select_backward", "sign", "slice_backward", "slice_scatter", "sort", "stack",
    "threshold_backward", "topk", "tril", "triu", "unfold_backward", "where", "zero_", "zeros", "zeros_like", "arange",
    "detach", "lift_fresh", "lift_fresh_copy", "_unsafe_view", "_reshape_copy", "bernoulli", "clamp", "clamp_min", "floor",
    "round", "trunc",
}  # fmt: skip
"""Operations whose results are among the numbers that they are given, or whole."""


class Stochastic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, every operation errs at random, as in `dtype`."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unit, self.unit_of_sums = UNIT[dtype], UNIT[torch.promote_types(dtype, torch.float32)]
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        found = function(*arguments, **(keywords or {}))
        name = function.overloadpacket.__name__
        if name in EXACT or function.is_view:
            return found
        if isinstance(found, Tensor):
            return self._rounded(name, found, arguments)
        if isinstance(found, (tuple, list)):
            return type(found)(self._rounded(name, each, arguments) if isinstance(each, Tensor) else each for each in found)
        return found

    def _rounded(self, name: str, y: Tensor, arguments: Any) -> Tensor:
        if y.dtype != torch.float64 or not y.numel():
            return y
        terms = _terms(name, y, arguments)
        summed = terms / 6.0 * self.unit_of_sums**2 if terms > 1 else 0.0
        deviation = math.sqrt(summed + self.unit**2 / 3.0)
        d = torch.empty(y.shape, dtype=torch.float64).uniform_(-1.0, 1.0, generator=self.generator)
        if name == "tanh":
            return y.add_(d, alpha=2.0 * self.unit)
        return y.mul_(d.mul_(math.sqrt(3.0) * deviation).add_(1.0))


def _terms(name: str, y: Tensor, arguments: Any) -> int:
    """How many terms each number of a result is the sum of."""
    if name in PRODUCTS:
        factor = arguments[1] if name.startswith(("add", "badd")) else arguments[0]
        return int(factor.shape[PRODUCTS[name]])
    if name in REDUCTIONS and isinstance(arguments[0], Tensor):
        return max(1, arguments[0].numel() // y.numel())
    if name == "convolution":
        return int(arguments[1][0].numel())
    return 1
