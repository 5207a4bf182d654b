"""Packed weights. A search uses the same weights hundreds of times. The layout is that of oneDNN, or of an installed kernel
(`tfkit.plugin.Float32Kernel`).

Without packing, oneDNN reorders the weight in every product. With few rows, MKL reads it at a third of the memory bandwidth:
5 rows and 2,048 x 512 weights take 0.27 ms with MKL, 0.16 with oneDNN, and 0.09 with packed weights; 300 rows take 6.6, 3.1 and
2.9 ms (bench/packed.py). Packing pays back after about 6 products with few rows, or 30 with many, so a weight is packed after
that much use. Packing does not speed up a single row. Results differ at most in the order of summation.

A kernel of a plugin packs a weight before its first product, so that all products of a search have the same bits, whatever was
computed before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

from torch import Tensor

from ...slots.float32_kernel import Float32Kernel
from ...slots.lazy import load
from . import onednn

FEW, AFTER_FEW, AFTER_MANY = 16, 6, 30
"""A product has few rows up to `FEW`. A weight is packed after `AFTER_FEW` products with few rows or `AFTER_MANY` with more."""
MAX_BYTES = 2**30
"""Limit of the memory of all packed weights, in bytes."""


@dataclass
class _Use:
    """The use of one weight since its first product.

    Args:
        weight: weak reference to the weight.
        version: its version counter at the first product.
        pointer: its address at the first product.
        saved: the time that packing would have saved so far; packing pays back at AFTER_FEW * AFTER_MANY.
        prepacked: the packed weight, in the layout of its kernel.
        bytes: its memory.
    """

    weight: ReferenceType[Tensor]
    version: int
    pointer: int
    saved: int = 0
    prepacked: Any = None
    bytes: int = 0


class PrepackedWeights:
    """Packed copies of weights. A weight that was modified in place or moved is packed again.

    Args:
        kernel: whose layout `product` uses, or None.
    """

    def __init__(self, kernel: Float32Kernel | None = None) -> None:
        self.kernel = kernel
        self._pack: Callable[[Tensor], Any] | None = None if kernel is None else load(kernel.pack)
        self._multiply: Callable[..., Tensor] | None = None if kernel is None else load(kernel.multiply)
        self._uses: dict[tuple[Any, int], _Use] = {}
        self.bytes = 0

    def of(self, weight: Tensor, rows: int) -> Tensor:
        """The weight (out, in) for a product of oneDNN with `rows` rows, packed if it was used often enough."""
        if onednn.PACK is None:
            return weight
        pack = onednn.PACK
        won = 0 if rows == 1 else AFTER_MANY if rows <= FEW else AFTER_FEW
        packed = self._packed(weight, "onednn", lambda: pack(weight.detach(), None), won)
        return weight if packed is None else packed

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """x W^T + b by the kernel, x (N, in), weight (out, in), bias (out,) -> (N, out); None without a kernel, and for a
        weight that cannot be packed."""
        if self._pack is None or self._multiply is None:
            return None
        pack = self._pack
        packed = self._packed(weight, "kernel", lambda: pack(weight), AFTER_FEW * AFTER_MANY)
        return None if packed is None else self._multiply(x, packed, bias)

    def _packed(self, weight: Tensor, layout: str, pack: Callable[[], Any], won: int) -> Any:
        """The packed weight, or None if that would not pay yet; packing would have made this product faster by `won`."""
        if weight.is_inference():
            return None
        key, now = (layout, id(weight)), (weight._version, weight.data_ptr())
        use = self._uses.get(key)
        if use is None or use.weight() is not weight or (use.version, use.pointer) != now:
            if use is not None and use.prepacked is not None:
                self.bytes -= use.bytes
            use = self._uses[key] = _Use(ref(weight), *now)
        if use.prepacked is not None:
            return use.prepacked
        use.saved += won
        if use.saved < AFTER_FEW * AFTER_MANY or self.bytes + weight.nbytes > MAX_BYTES:
            return None
        use.prepacked, use.bytes = pack(), weight.nbytes
        self.bytes += use.bytes
        return use.prepacked
