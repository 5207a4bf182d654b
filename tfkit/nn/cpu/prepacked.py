"""Weights in oneDNN's packed layout. A search uses the same weights hundreds of times.

Without packing, oneDNN reorders the weight in every product. With few rows, MKL reads it at a third of the memory bandwidth:
5 rows and 2,048 x 512 weights take 0.27 ms with MKL, 0.16 with oneDNN, and 0.09 with packed weights; 300 rows take 6.6, 3.1 and
2.9 ms (bench/packed.py). Packing pays back after about 6 products with few rows, or 30 with many, so a weight is packed after
that much use. Packing does not speed up a single row. Results differ at most in the order of summation.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import ReferenceType, ref

from torch import Tensor

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
        prepacked: the packed weight.
    """

    weight: ReferenceType[Tensor]
    version: int
    pointer: int
    saved: int = 0
    prepacked: Tensor | None = None


class PrepackedWeights:
    """Packed copies of weights. A weight that was modified in place or moved is packed again."""

    def __init__(self) -> None:
        self._uses: dict[int, _Use] = {}
        self.bytes = 0

    def of(self, weight: Tensor, rows: int) -> Tensor:
        """The weight (out, in), packed if it was used often enough, for a product with `rows` rows."""
        if onednn.PACK is None or weight.is_inference():
            return weight
        use, now = self._uses.get(id(weight)), (weight._version, weight.data_ptr())
        if use is None or use.weight() is not weight or (use.version, use.pointer) != now:
            if use is not None and use.prepacked is not None:
                self.bytes -= _bytes(use.prepacked)
            use = self._uses[id(weight)] = _Use(ref(weight), *now)
        if use.prepacked is not None:
            return use.prepacked
        if rows > 1:
            use.saved += AFTER_MANY if rows <= FEW else AFTER_FEW
        if use.saved < AFTER_FEW * AFTER_MANY or self.bytes + _bytes(weight) > MAX_BYTES:
            return weight
        use.prepacked = onednn.PACK(weight.detach(), None)
        self.bytes += _bytes(weight)
        return use.prepacked


def _bytes(weight: Tensor) -> int:
    return weight.numel() * weight.element_size()
