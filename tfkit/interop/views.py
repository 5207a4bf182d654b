"""Views: how tfkit's tensors are stored in an external tensor. Each view has an exact inverse, and only moves elements.

A rule lists its views from tfkit's tensors to the external one. The inverse applies the inverses in reverse order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import Diagnostic, InputError

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
CACHE_LINE = 64
"""Bytes."""


class View(Protocol):
    """A change of layout that can be undone."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of the result. Raises ValueError if the tensors do not fit the view."""
        ...

    def apply(self, arrays: Sequence[Array]) -> Array:
        """From ours towards theirs."""
        ...

    def invert(self, array: Array, shapes: Sequence[Shape]) -> list[Array]:
        """From theirs towards ours, where the tensors had `shapes`."""
        ...


class _OfOne(ABC):
    """A view of a single tensor."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        # A broadcast scalar has a shape and one element.
        return self.apply([np.broadcast_to(np.zeros((), np.uint8), shapes[0])]).shape

    def apply(self, arrays: Sequence[Array]) -> Array:
        (array,) = arrays
        return self.forward(array)

    def invert(self, array: Array, shapes: Sequence[Shape]) -> list[Array]:
        return [self.backward(array, shapes[0])]

    @abstractmethod
    def forward(self, array: Array) -> Array: ...

    def backward(self, array: Array, shape: Shape) -> Array:
        return array.reshape(shape)


class Transpose(_OfOne):
    """A matrix with exchanged axes; a bias as it is. `Conv1D` of GPT-2 stores (in, out)."""

    def forward(self, array: Array) -> Array:
        return array.T

    def backward(self, array: Array, shape: Shape) -> Array:
        return array.T


class Unsqueeze(_OfOne):
    """`count` axes of length 1 before the others."""

    def __init__(self, count: int) -> None:
        self.count = count

    def forward(self, array: Array) -> Array:
        return array.reshape((1,) * self.count + array.shape)


class Scalar(_OfOne):
    """One element without axes."""

    def forward(self, array: Array) -> Array:
        return array.reshape(())


class PermuteRotary(_OfOne):
    """Rows of `heads` heads, (H*D, M) or (H*D,), from pairs of neighbours (interleaved rotary) to two halves."""

    def __init__(self, heads: int) -> None:
        self.heads = heads

    def forward(self, array: Array) -> Array:
        pairs = array.reshape(self.heads, -1, 2, *array.shape[1:])  # (H, D/2, 2, M)
        return pairs.swapaxes(1, 2).reshape(array.shape)

    def backward(self, array: Array, shape: Shape) -> Array:
        halves = array.reshape(self.heads, 2, -1, *array.shape[1:])  # (H, 2, D/2, M)
        return halves.swapaxes(1, 2).reshape(shape)


class Concat:
    """Tensors one after the other along the first axis: a fused projection."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        if len({shape[1:] for shape in shapes}) != 1:
            raise ValueError(f"the shapes {', '.join(map(str, shapes))} differ beyond the first axis")
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def apply(self, arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays)

    def invert(self, array: Array, shapes: Sequence[Shape]) -> list[Array]:
        return np.split(array, np.cumsum([shape[0] for shape in shapes])[:-1])


class StackPerHead:
    """The rows of each head of all tensors together: (H, n, D) instead of n times (H, D). GPT-NeoX fuses projections so."""

    def __init__(self, heads: int) -> None:
        self.heads = heads

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        if len(set(shapes)) != 1 or shapes[0][0] % self.heads:
            raise ValueError(f"the shapes {', '.join(map(str, shapes))} are not those of {self.heads} heads each")
        return (len(shapes) * shapes[0][0], *shapes[0][1:])

    def apply(self, arrays: Sequence[Array]) -> Array:
        rest = arrays[0].shape[1:]
        heads = np.stack([array.reshape(self.heads, -1, *rest) for array in arrays], axis=1)  # (H, n, D, M)
        return heads.reshape(-1, *rest)

    def invert(self, array: Array, shapes: Sequence[Shape]) -> list[Array]:
        heads = array.reshape(self.heads, len(shapes), -1, *array.shape[1:])
        return [heads[:, number].reshape(shape) for number, shape in enumerate(shapes)]


def make_view(written: Any, config: dict[str, Any]) -> View:
    """A view from its form in a map: a name, or a name with an argument, which may be a key of `config`."""
    name, argument = next(iter(written.items())) if isinstance(written, dict) else (written, None)
    if isinstance(argument, str):
        argument = config[argument]
    kind = VIEWS[name]
    view: View = kind() if argument is None else kind(argument)
    return view


VIEWS: dict[str, Any] = {
    "transpose": Transpose,
    "unsqueeze": Unsqueeze,
    "scalar": Scalar,
    "permute_rotary": PermuteRotary,
    "concat": Concat,
    "stack_per_head": StackPerHead,
}
"""All views by their name in a map."""


def stored_shape(views: Sequence[View], shapes: Sequence[Shape]) -> Shape:
    """The shape in their file. Raises ValueError if the tensors do not fit the views."""
    current = list(shapes)
    for view in views:
        current = [view.shape(current)]
    (shape,) = current
    return shape


def to_stored(views: Sequence[View], arrays: Sequence[Array]) -> Array:
    """Their tensor from ours."""
    current = list(arrays)
    for view in views:
        current = [view.apply(current)]
    (array,) = current
    return array


def from_stored(views: Sequence[View], array: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Our tensors, which have `shapes`, from theirs."""
    steps = [list(shapes)]
    for view in views[:-1]:
        steps.append([view.shape(steps[-1])])
    ours = [array]
    for view, before in zip(reversed(views), reversed(steps), strict=False):
        ours = view.invert(ours[0], before)
    if [tensor.shape for tensor in ours] != [tuple(shape) for shape in shapes]:
        raise ValueError(f"{[tensor.shape for tensor in ours]} are not the shapes {list(shapes)}")
    return ours


def contiguous(array: Array) -> Array:
    """The array with its elements in the order of a file. A transposed matrix is copied in strips of one cache line."""
    if array.flags.c_contiguous or array.ndim != 2:
        return np.ascontiguousarray(array)
    copy = np.empty(array.shape, array.dtype)
    width = max(1, CACHE_LINE // array.itemsize)
    for first in range(0, array.shape[1], width):
        copy[:, first : first + width] = array[:, first : first + width]
    return copy


# Conversion of elements between dtypes, on their bits. numpy has no bfloat16: it is the upper half of float32.


def converted(bits: Array, source: str, target: str) -> Array:
    """The bits, as whole numbers, of elements in another dtype, rounded to the nearest, ties to even; to bfloat16 through
    float32. Raises ValueError if a dtype is not one of real numbers, or a finite value is too large for the target."""
    if source == target:
        return bits
    values = real(bits, source)
    if target == "bfloat16":
        single = values.astype(np.float32).view(np.uint32)
        upper = ((single + 0x7FFF + ((single >> 16) & 1)) >> 16).astype(np.uint16)
        rounded = np.where(np.isnan(values), np.uint16(0x7FC0), upper)
    else:
        with np.errstate(over="ignore"):
            rounded = values.astype(target)
        rounded = rounded.view(f"u{rounded.dtype.itemsize}")
    lost = np.isfinite(values) & ~np.isfinite(real(rounded, target))
    if lost.any():
        raise ValueError(f"{int(lost.sum()):,} values, such as {float(values[lost].flat[0]):.3g}, are too large for {target}")
    return rounded


def real(bits: Array, dtype: str) -> Array:
    """Elements from their bits. Raises ValueError for a dtype that is not one of real numbers."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype not in ("float64", "float32", "float16"):
        raise ValueError(f"{dtype} is not a dtype of weights")
    return bits.view(dtype)


# Tensors of other libraries that are stored, although they are computed from the configuration.


def whisper_positions(config: Mapping[str, Any]) -> Array:
    """The sinusoids of Whisper's encoder, (max_source_positions, d_model), in the float32 steps of transformers."""
    import torch

    half = config["d_model"] // 2
    frequencies = torch.exp(-math.log(10000) / (half - 1) * torch.arange(half, device="cpu"))
    angles = torch.arange(config["max_source_positions"], device="cpu").view(-1, 1) * frequencies.view(1, -1)
    positions: Array = torch.cat([angles.sin(), angles.cos()], dim=1).double().numpy()
    return positions


def marian_positions(config: Mapping[str, Any]) -> Array:
    """All sines, then all cosines, (max_position_embeddings, d_model)."""
    width = config["d_model"]
    even = np.arange(0, width, 2)
    angles = np.arange(config["max_position_embeddings"])[:, None] / 10000.0 ** (even / width)
    return np.concatenate([np.sin(angles), np.cos(angles)[:, : width // 2]], axis=1)


CONSTANTS: dict[str, tuple[str, Callable[[Mapping[str, Any]], Array]]] = {
    "whisper_positions": ("max_source_positions", whisper_positions),
    "marian_positions": ("max_position_embeddings", marian_positions),
}
"""By its name in a map, the key of a constant's rows, and what computes it from a configuration, in float64."""
MAX_CONSTANT = 1 << 24
"""The most numbers of a constant; that of the largest Whisper has 1,500 x 1,280."""


def constant_shape(name: str, config: Mapping[str, Any]) -> tuple[int, int]:
    """The shape of a constant, without computing it."""
    return config[CONSTANTS[name][0]], config["d_model"]


def constant(name: str, config: Mapping[str, Any]) -> Array:
    """The numbers of a constant. Raises InputError if there are too many."""
    (key, compute), (rows, width) = CONSTANTS[name], constant_shape(name, config)
    if rows * width > MAX_CONSTANT:
        message = f"`{key}` x `d_model` is {rows:,} x {width:,}, and a table of positions has at most {MAX_CONSTANT:,} numbers"
        raise InputError(Diagnostic("TFK142", message, "correct the configuration"))
    return compute(config)


TOLERANCE = 1e-5
"""Stored constants may differ by this much: they were computed in float32, also the angles."""
