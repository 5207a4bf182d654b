"""Compares two tensors, to the bit or within a bound; messages name the worst element."""

from __future__ import annotations

import torch
from torch import Tensor

from ..differences import at_element, differing, error_ratio, first_of, worst_of
from ..finding import Violation


def same(check: str, got: Tensor, want: Tensor, words: str, tensor: str, shown: Tensor | None = None) -> None:
    """Raises Violation where the two differ by a bit anywhere (or where `shown` is true)."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise Violation(check, f"{words}: {tensor} is {tuple(got.shape)} {got.dtype}, not {tuple(want.shape)} {want.dtype}")
    differs = differing(got, want)
    if shown is not None:
        differs = differs & _spread(shown, differs)
    if bool(differs.any()):
        got, want = got.detach(), want.detach()
        index = first_of(differs)
        changed = f"{float(got[index]):.9g}, not {float(want[index]):.9g}"
        message = f"{words}: {tensor}{list(index)} is {changed}; not one bit may change"
        raise at_element(check, message, tensor, index, got, want, 0.0)


def close(
    check: str, got: Tensor, want: Tensor, bound: Tensor | float, words: str, tensor: str, shown: Tensor | None = None
) -> float:
    """The largest |got - want| / bound. Raises Violation where it is above 1, or where `got` holds a NaN."""
    if got.shape != want.shape:
        raise Violation(check, f"{words}: {tensor} is {tuple(got.shape)}, not {tuple(want.shape)}")
    got, want = got.detach(), want.detach()
    ratio = error_ratio(got, want, bound)
    if shown is not None:
        ratio = torch.where(_spread(shown.cpu(), ratio), ratio, 0.0)
    worst, index = worst_of(ratio)
    if worst > 1.0:
        limit = float(bound[index]) if isinstance(bound, Tensor) else bound
        numbers = f"{float(got[index]):.9g}, not {float(want[index]):.9g}"
        apart = abs(float(got[index]) - float(want[index]))
        message = f"{words}: {tensor}{list(index)} is {numbers}; they are {apart:.3g} apart, {limit:.3g} is allowed"
        raise at_element(check, message, tensor, index, got, want, limit)
    return worst


def _spread(shown: Tensor, like: Tensor) -> Tensor:
    """(B, L) bool over the further axes of a tensor."""
    return shown.reshape(*shown.shape, *([1] * (like.dim() - shown.dim()))).expand_as(like)
