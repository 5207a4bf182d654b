"""Two tensors compared: to the bit, or within a bound, told by the element that is furthest off."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..finding import Violation


def same(check: str, got: Tensor, want: Tensor, words: str, tensor: str, shown: Tensor | None = None) -> None:
    """Raises Violation where the two differ by a bit anywhere (or where `shown` is true)."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise Violation(check, f"{words}: {tensor} is {tuple(got.shape)} {got.dtype}, not {tuple(want.shape)} {want.dtype}")
    differs = ~((got == want) | (got.isnan() & want.isnan()))
    if shown is not None:
        differs = differs & _spread(shown, differs)
    if bool(differs.any()):
        index = tuple(differs.nonzero()[0].tolist())
        message = (
            f"{words}: {tensor}{list(index)} is {float(got[index]):.9g}, not {float(want[index]):.9g}; not one bit may change"
        )
        raise Violation(check, message, tensor=tensor, index=index, got=float(got[index]), want=float(want[index]), bound=0.0)


def close(
    check: str, got: Tensor, want: Tensor, bound: Tensor | float, words: str, tensor: str, shown: Tensor | None = None
) -> float:
    """The largest |got - want| / bound. Raises Violation where it is above 1, or where `got` holds a NaN."""
    if got.shape != want.shape:
        raise Violation(check, f"{words}: {tensor} is {tuple(got.shape)}, not {tuple(want.shape)}")
    got, want = (t.detach().to("cpu", torch.float64) for t in (got, want))
    allowed = bound.detach().cpu() if isinstance(bound, Tensor) else torch.full_like(want, bound)
    ratio = torch.where(got == want, 0.0, (got - want).abs() / allowed).nan_to_num(nan=math.inf)
    if shown is not None:
        ratio = torch.where(_spread(shown.cpu(), ratio), ratio, 0.0)
    if not ratio.numel():
        return 0.0
    worst = float(ratio.max())
    if worst > 1.0:
        index = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
        limit = float(allowed.broadcast_to(ratio.shape)[index])
        message = (
            f"{words}: {tensor}{list(index)} is {float(got[index]):.9g}, not {float(want[index]):.9g}; "
            f"they are {abs(float(got[index] - want[index])):.3g} apart, {limit:.3g} is allowed"
        )
        raise Violation(check, message, tensor=tensor, index=index, got=float(got[index]), want=float(want[index]), bound=limit)
    return worst


def _spread(shown: Tensor, like: Tensor) -> Tensor:
    """(B, L) bool over the further axes of a tensor."""
    return shown.reshape(*shown.shape, *([1] * (like.dim() - shown.dim()))).expand_as(like)
