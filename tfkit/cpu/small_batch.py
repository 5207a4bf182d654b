"""Linear maps y = x W^T + b while decoding on a CPU, with the fastest kernel for the number of rows.

For few rows and a W larger than the cache, the time is that of reading W once. Some of MKL's products of (rows, in) with W^T
read it at half that speed or less. Two other ways are faster there, and which one depends on the processor (`Rule`):

transposed   W times (in, rows). AMD: 4 ms instead of 8 for 4 rows and 37,000 x 512 weights. Intel with AVX-512: 11 ms instead
             of 20 for 12 rows, but 11 instead of 5 for 2 rows (bench/packed.py).
packed       oneDNN with packed weights (packed_weight.py), once a search has used a weight often enough. Intel with AVX-512:
             5 ms instead of 10 for 5 rows and 37,000 x 512 weights, and 0.18 instead of 0.32 for 2,048 x 512.

Other products are bound by arithmetic. Where MKL is slow, oneDNN computes them (products.py): 3.7 ms instead of 8.3 for 280
rows and 10,000 x 128 weights (bench/translate.py). Its call costs 10 microseconds more, so MKL keeps the small products.

All kernels sum the same products, in different order. The rule depends on the processor alone and not on a measurement, so
that results on one machine never change. A user may replace it by a file of measurements (product_table.py). A kernel of a
plugin (`tfkit.plugin.Float32Kernel`) comes before the rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..slots.processor_kernels import Float32Kernel
from .float32 import float32_kernel_here
from .packed_weight import PackedWeight, SearchProducts
from .product_table import Choice, ProductTable, transposed_product
from .products import PRODUCT, VENDORS, can_pack, may_multiply, may_read, measured_class, product, vendor

MIN_READ_BOUND_ELEMENTS, MAX_READ_BOUND_ROWS = 2**23, 4
"""With so many elements of W and so few rows, reading W bounds a product even with oneDNN."""
MIN_PLAIN_WORK = 1_000_000
"""From this many multiplications per thread on, oneDNN is faster with a plain weight, where it is faster at all."""


@dataclass(frozen=True)
class Rule:
    """Which kernel is faster than MKL's product on a processor.

    Args:
        processors: which ones, in words.
        transposed: rows for which W times (in, rows) is faster, if W has at least as many outputs as inputs; first and last.
        transposed_size: and so many elements.
        packed: rows for which a packed W is faster, first and last.
        packed_size: and so many elements.
        packed_outputs: and so many outputs.
        packed_work: and so many multiplications per thread.
        narrow: whether MKL is faster again with more rows than W has inputs.
        onednn: whether oneDNN is faster with a plain W, from `MIN_PLAIN_WORK` multiplications per thread on.
    """

    processors: str = ""
    transposed: tuple[int, int] = (1, 0)
    transposed_size: int = 0
    packed: tuple[int, int] = (1, 0)
    packed_size: int = 0
    packed_outputs: int = 0
    packed_work: int = 0
    narrow: bool = False
    onednn: bool = False

    def transposes(self, rows: int, outer: int, inner: int) -> bool:
        first, last = self.transposed
        return first <= rows <= last and outer >= inner and outer * inner >= self.transposed_size

    def packs(self, rows: int, outer: int, inner: int) -> bool:
        first, last = self.packed
        return (
            first <= rows <= (min(last, inner) if self.narrow else last)
            and outer >= self.packed_outputs
            and outer * inner >= self.packed_size
            and rows * outer * inner >= self.packed_work * torch.get_num_threads()
        )


ANY = 2**62
AMD_AVX512 = Rule(
    "AMD processors with AVX-512", transposed=(2, 8), transposed_size=2**18, packed=(1, ANY), packed_work=700_000, onednn=True
)
"""AMD processors with AVX-512. MKL uses AVX2 there, and oneDNN AVX-512."""
INTEL_AVX512 = Rule(
    "Intel processors with AVX-512", transposed=(7, 16), transposed_size=2**20, packed=(4, ANY), packed_size=2**18, narrow=True
)
INTEL_AVX2 = Rule("Intel processors without AVX-512", packed=(2, 32), packed_outputs=4096)
AMD_AVX2 = Rule("AMD processors without AVX-512", packed=(2, ANY), packed_size=2**16)
OTHER = Rule("processors of other vendors, and torch without MKL", transposed=(2, 8), transposed_size=2**18)


def rule_here() -> Rule:
    """The rule of this processor."""
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    if vendor() in VENDORS and measured_class() is not None:
        return AMD_AVX512 if wide else AMD_AVX2
    if vendor() == "GenuineIntel":
        return INTEL_AVX512 if wide else INTEL_AVX2
    return OTHER


RULE = rule_here()
TABLE: ProductTable | None = None
"""The measurements that come before the rule: those of `tfkit.use_cpu_table`."""


def products_here(kernels: Iterable[Float32Kernel]) -> dict[str, Any]:
    """How the float32 products of decoding on a CPU are chosen.

    Args:
        kernels: the installed ones.

    Returns:
        `kernel`, that of packed weights in words, or None; `rule`, the processors of the built-in rule; `table`, the name of
        the measured table before both, or None; `weights` and `threads`, the number of sizes and the numbers of threads that
        the table has; `plain`, how large products with plain weights, as in training, are computed: `by` oneDNN or MKL,
        `processors` and `machine` of the measurement that decides and its `ratio` (MKL's time over oneDNN's), or None.
    """
    kind = measured_class()
    plain = {
        "by": "torch" if kind is None else "MKL" if PRODUCT is None else "oneDNN",
        "processors": kind and kind.processors,
        "machine": kind and kind.machine,
        "ratio": kind and kind.ratio,
    }
    table = TABLE and {"table": TABLE.name, "weights": TABLE.weights, "threads": TABLE.threads}
    kernel = float32_kernel_here(kernels)
    return {
        "kernel": kernel and kernel.summary,
        "rule": RULE.processors,
        "plain": plain,
        **(table or {"table": None, "weights": 0, "threads": []}),
    }


def rule_choice(count: int, outer: int, inner: int) -> Choice:
    """The kernels that the built-in rule chooses for `count` rows and a weight (outer, inner)."""
    transposes = RULE.transposes(count, outer, inner)
    bound_by_reading = transposes and count <= MAX_READ_BOUND_ROWS and outer * inner >= MIN_READ_BOUND_ELEMENTS
    enough = RULE.onednn and count * outer * inner >= MIN_PLAIN_WORK * torch.get_num_threads()
    return Choice(RULE.packs(count, outer, inner), enough and not bound_by_reading, transposes)


def small_batch_linear(x: Tensor, weight: Tensor, bias: Tensor | None, packed: PackedWeight, search: SearchProducts) -> Tensor:
    """x (..., in), weight (out, in), bias (out,) -> (..., out) in a search, with the fastest kernel for the number of rows."""
    outer, inner = weight.shape
    rows = x.reshape(-1, inner)
    count, shape = len(rows), (*x.shape[:-1], outer)
    measured = TABLE.choice(count, outer, inner) if TABLE else None
    if search.kernel is not None and (measured is None or measured.installed) and may_read(x, weight, bias):
        y = packed.product(rows, weight, bias, search)
        if y is not None:
            return y.view(shape)
    choice = measured or rule_choice(count, outer, inner)
    if choice.packed and can_pack(x, weight, bias):
        copy = packed.for_onednn(weight, count, search)
        if copy is not None:
            return product(rows, copy, bias).view(shape)
    if choice.onednn and may_multiply(x, weight, bias):
        return product(rows, weight, bias).view(shape)
    if choice.transposed:
        return transposed_product(rows, weight, bias).view(shape)
    return functional.linear(x, weight, bias)
