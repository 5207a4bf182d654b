"""Where two tensors differ, for messages: the first element that differs by a bit, the element with the worst error."""

from __future__ import annotations

import torch
from torch import Tensor

from .finding import Violation

Index = tuple[int, ...]


def first_of(wrong: Tensor) -> Index:
    """The index of the first true element."""
    return tuple(int(axis) for axis in wrong.nonzero()[0])


def double(tensor: Tensor) -> Tensor:
    """The tensor in float64 on the CPU, without its graph."""
    return tensor.detach().to("cpu", torch.float64)


def differing(got: Tensor, want: Tensor) -> Tensor:
    """Where two tensors differ by a bit; a NaN equals a NaN."""
    return ~((got == want) | (got.isnan() & want.isnan()))


def error_ratio(got: Tensor, want: Tensor, bound: Tensor | float) -> Tensor:
    """|got - want| / bound in float64: 0 where both are equal, infinite where there is a NaN."""
    got, want = double(got), double(want)
    limit = double(bound) if isinstance(bound, Tensor) else bound
    return torch.where(got == want, 0.0, (got - want).abs() / limit).nan_to_num(nan=torch.inf, posinf=torch.inf)


def worst_of(ratio: Tensor) -> tuple[float, Index]:
    """The largest ratio, and where it is; 0 where there are no elements."""
    if not ratio.numel():
        return 0.0, ()
    worst, index = int(ratio.argmax()), list[int]()
    for size in reversed(ratio.shape):
        worst, axis = divmod(worst, size)
        index.insert(0, axis)
    return float(ratio.max()), tuple(index)


ROWS = ("batch row", "head", "query row", "feature")
AXES = {
    "output": ROWS,
    "gradient of query": ROWS,
    "lse": ROWS[:3],
    "weights": ("batch row", "head", "query row", "key"),
    "gradient of key": ("batch row", "key/value head", "key", "feature"),
    "gradient of value": ("batch row", "key/value head", "key", "feature"),
}
"""The axes of the results of a call."""


def where_wrong(tensor: str, wrong: Tensor) -> str:
    """In which rows, heads and features the wrong elements lie, in words; nothing if they lie everywhere.

    Args:
        tensor: name of the result, as in `AXES`.
        wrong: which elements are wrong.
    """
    places, axes = [], AXES.get(tensor, ())
    for axis, name in enumerate(axes if len(axes) == wrong.dim() else ()):
        rest = [other for other in range(wrong.dim()) if other != axis]
        indices, size = wrong.any(rest).nonzero().flatten().tolist(), wrong.shape[axis]
        if indices and len(indices) < size:
            places.append(_range_of(name, indices, size))
    return ", ".join(places)


def _range_of(name: str, indices: list[int], size: int) -> str:
    first, last = indices[0], indices[-1]
    if first == last:
        return f"{name} {first}"
    if last - first + 1 > len(indices):
        return f"{len(indices)} of {size} {name}s"
    if last == size - 1:
        return f"{name}s from {first} on"
    return f"{name}s {first} to {last}"


def at_element(
    check: str, message: str, tensor: str, index: Index, got: Tensor, want: Tensor, bound: Tensor | float | None = None
) -> Violation:
    """The violation of a check at one element."""
    limit = float(bound.expand(got.shape)[index]) if isinstance(bound, Tensor) else bound
    return Violation(
        check,
        message,
        tensor=tensor,
        index=index,
        got=float(got.detach()[index]),
        want=float(want.detach()[index]),
        bound=limit,
    )
