"""Packed copies of a layer's weight. A search uses the same weights hundreds of times. The layout is that of oneDNN, or of an
installed kernel (`tfkit.plugin.Float32Kernel`).

Without packing, oneDNN reorders the weight in every product. With few rows, MKL reads it at a third of the memory bandwidth:
5 rows and 2,048 x 512 weights take 0.27 ms with MKL, 0.16 with oneDNN, and 0.09 with packed weights; 300 rows take 6.6, 3.1 and
2.9 ms (bench/packed.py). Packing pays back after about 6 products with few rows, or 30 with many, so a weight is packed after
that much use in a search: the bits of a search do not depend on the searches before. Packing does not speed up a single row.
Results differ at most in the order of summation.

A kernel of a plugin packs a weight before its first product, so that all products of a search have the same bits, whatever was
computed before.

Only searches use packed copies, and a search never uses a stale one. Writes that torch counts are seen at once by the version
of the weight. Writes past torch's counter (`weight.data`, NumPy, the moving averages of other libraries) are seen when the next
search begins: it compares a fingerprint of the weight with that of the copy. That reads the weight once, as a product with
one row does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..slots.lazy import load
from ..slots.processor_kernels import Float32Kernel
from . import products
from .float32 import float32_kernel_here
from .malloc import keep_freed_memory

MAX_FEW_ROWS, PRODUCTS_WITH_FEW, PRODUCTS_WITH_MANY = 16, 6, 30
"""A product has few rows up to `MAX_FEW_ROWS`. A weight is packed after so many products with few rows, or with more."""
PAYS = PRODUCTS_WITH_FEW * PRODUCTS_WITH_MANY
MAX_BYTES = 2**30
"""Limit of the memory of all packed copies in this process, in bytes."""
BLOCK = 2**17
"""Numbers of a weight that are summed at a time, in every way while they are in the cache."""


class SearchProducts:
    """The kernel of the products of a search, or of a series of searches.

    Args:
        kernels: the installed float32 kernels; the fastest that this processor supports is used.
    """

    def __init__(self, kernels: Iterable[Float32Kernel] = ()) -> None:
        keep_freed_memory()
        self.kernel = float32_kernel_here(kernels)
        self.pack: Callable[[Tensor], Any] | None = None if self.kernel is None else load(self.kernel.pack)
        self.multiply: Callable[..., Tensor] | None = None if self.kernel is None else load(self.kernel.multiply)
        name = None if self.kernel is None else self.kernel.fingerprints
        self._take: Callable[[Sequence[Tensor]], Tensor] | None = None if name is None else load(name)
        self._fingerprints: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}
        self._together: list[tuple[Sequence[Tensor], list[int], Tensor]] = []

    def fingerprint(self, weight: Tensor) -> tuple[Tensor, ...]:
        """What tells whether a weight was written to since; it reads each weight once, when the search begins to use it."""
        while self._together:
            for one, version, row in zip(*self._together.pop(), strict=True):
                if one._version == version:
                    self._fingerprints[_identity(one)] = (row,)
        key = _identity(weight)
        known = self._fingerprints.get(key)
        if known is None:
            take = self._take if weight.dtype == torch.float32 else None
            known = self._fingerprints[key] = sums_of(weight.flatten(1)) if take is None else (take([weight])[0],)
        return known

    def fingerprint_of_all(self, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The fingerprints of several weights as one, by one call of the kernel: the call takes as long as a small weight."""
        if self._take is None or any(weight.dtype != torch.float32 for weight in weights):
            return tuple(part for weight in weights for part in self.fingerprint(weight))
        rows = self._take(weights)
        self._together.append((weights, [weight._version for weight in weights], rows))
        return (rows,)


def _identity(weight: Tensor) -> tuple[Any, ...]:
    return weight.data_ptr(), weight._version, weight.shape, weight.stride(), weight.dtype


class _Active(threading.local):
    products: SearchProducts | None = None


active = _Active()
"""`active.products` are those of the search that runs in this thread; None outside of a search."""


@contextmanager
def searching(products: SearchProducts) -> Iterator[None]:
    """A search, or a step of one, in this thread: layers use packed copies of their weights."""
    before, active.products = active.products, products
    try:
        yield
    finally:
        active.products = before


@dataclass
class _Copy:
    """A packed copy, or the use of a weight so far that may lead to one.

    Args:
        version: the version counter of the weight.
        pointer: its address.
        search: the search that compared the copy with the weight.
        saved: the time that packing would have saved so far; packing pays back at `PAYS`.
        packed: the weight in the layout of its kernel, or None.
        sums: the fingerprint of the weight when it was packed.
        bytes: memory of `packed`.
    """

    version: int
    pointer: int
    search: SearchProducts
    saved: int = 0
    packed: Any = None
    sums: tuple[Tensor, ...] = ()
    bytes: int = 0

    def __del__(self) -> None:
        PackedWeight.bytes -= self.bytes


class PackedWeight:
    """The packed copies of one weight, which a layer owns. A copy of the layer starts without any."""

    bytes: ClassVar[int] = 0
    """Memory of all packed copies in this process, in bytes."""

    def __init__(self) -> None:
        self._copies: dict[str, _Copy] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedWeight:
        return PackedWeight()

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedWeight, ()

    def clear(self) -> None:
        """Frees the copies."""
        self._copies.clear()

    def for_onednn(self, weight: Tensor, rows: int, search: SearchProducts) -> Tensor | None:
        """The weight (out, in) packed for a product of oneDNN with `rows` rows; None until it was used often enough."""
        if products.PACK is None:
            return None
        pack = products.PACK
        saved = 0 if rows == 1 else PAYS // (PRODUCTS_WITH_FEW if rows <= MAX_FEW_ROWS else PRODUCTS_WITH_MANY)
        return self._packed("onednn", weight, lambda: pack(weight.detach(), None), saved, search)  # type: ignore[no-any-return]

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, search: SearchProducts) -> Tensor | None:
        """x W^T + b by the installed kernel, x (N, in), W (out, in), b (out,) -> (N, out); None if W cannot be packed."""
        pack, multiply = search.pack, search.multiply
        if search.kernel is None or pack is None or multiply is None:
            return None
        packed = self._packed(search.kernel.name, weight, lambda: pack(weight), PAYS, search)
        return None if packed is None else multiply(x, packed, bias)

    def _packed(self, layout: str, weight: Tensor, pack: Callable[[], Any], saved: int, search: SearchProducts) -> Any:
        """The packed copy, or None if packing does not pay yet; it would have made this product faster by `saved`."""
        if weight.is_inference():
            return None
        version, pointer = weight._version, weight.data_ptr()
        copy = self._copies.get(layout)
        if copy is None or (copy.version, copy.pointer) != (version, pointer):
            copy = self._copies[layout] = _Copy(version, pointer, search)
        elif copy.search is not search:
            if copy.packed is not None and not equal_sums(copy.sums, search.fingerprint(weight)):
                copy = self._copies[layout] = _Copy(version, pointer, search)
            copy.search, copy.saved = search, 0
        copy.saved += saved
        if copy.saved < PAYS:
            return None
        if copy.packed is not None or PackedWeight.bytes + weight.nbytes > MAX_BYTES:
            return copy.packed
        copy.sums = search.fingerprint(weight)
        packed = pack()
        copy.bytes, copy.packed = weight.nbytes, packed
        PackedWeight.bytes += copy.bytes
        return packed


def sums_of(weight: Tensor) -> tuple[Tensor, ...]:
    """What tells whether a weight (out, in) was written to: sums of the bits of its columns and of its rows, and the rows times
    random factors.

    A change of one number changes the sums of bits, however small it is. Where few numbers differ, as in an identity, numbers
    may change places and leave the sums of bits as they are; then the random sums change.
    """
    weight = weight.detach().contiguous()
    factors = _factors(weight.shape[1])
    dtype = torch.int64 if weight.shape[1] * weight.element_size() % 8 == 0 else torch.int32
    parts = []
    for block in torch.split(weight, max(1, BLOCK // weight.shape[1])):
        bits = block.view(dtype)
        parts.append((bits.sum(0), bits.sum(1), block.mv(factors).view(torch.int32)))  # bits, because NaN is not equal to NaN
    if len(parts) == 1:
        return parts[0]
    columns, rows, products = zip(*parts, strict=True)
    return torch.stack(columns).sum(0), torch.cat(rows), torch.cat(products)


@cache
def _factors(count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator("cpu").manual_seed(0), dtype=torch.float32, device="cpu")


def equal_sums(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    """Whether two fingerprints are equal."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
