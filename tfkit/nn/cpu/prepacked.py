"""Weights laid out as oneDNN multiplies by them, for searches, which multiply by the same ones hundreds of times.

oneDNN lays the weight out anew in every product, and MKL reads it at a third of the speed of memory where there are few rows:
5 rows and 2,048 x 512 weights take MKL 0.27 ms, oneDNN 0.16, and 0.09 with the weight packed; 300 rows 6.6, 3.1 and 2.9
(bench/packed.py). To pack takes as long as half a dozen products of few rows save, or one or two dozen of many, so a weight is
packed when it has been used as often. A single row takes as long either way. The numbers are the same, their sums in another
order at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import ReferenceType, ref

from torch import Tensor

from . import onednn

FEW, AFTER_FEW, AFTER_MANY = 16, 6, 30
"""Up to so many rows a product is one of few; after how many uses by few rows a weight is packed, and by more."""
MOST_BYTES = 2**30
"""What all packed weights may take together, beside the weights themselves."""


@dataclass
class _Use:
    """A weight, which is not kept alive, as it was when it was first asked for; how much packing it would have won since, and
    the packed one."""

    weight: ReferenceType[Tensor]
    version: int
    pointer: int
    won: int = 0
    prepacked: Tensor | None = None


class PrepackedWeights:
    """Packed weights by weight. A weight that has changed in place, or moved, is packed anew."""

    def __init__(self) -> None:
        self._uses: dict[int, _Use] = {}
        self.bytes = 0

    def of(self, weight: Tensor, rows: int) -> Tensor:
        """The weight (out, in) itself, or packed where it was asked for often enough; for a product with `rows` rows."""
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
            use.won += AFTER_MANY if rows <= FEW else AFTER_FEW
        if use.won < AFTER_FEW * AFTER_MANY or self.bytes + _bytes(weight) > MOST_BYTES:
            return weight
        use.prepacked = onednn.PACK(weight.detach(), None)
        self.bytes += _bytes(weight)
        return use.prepacked


def _bytes(weight: Tensor) -> int:
    return weight.numel() * weight.element_size()
