"""float32 products with oneDNN, on processors where MKL is slow.

Torch multiplies float32 on a CPU with MKL. On AMD processors MKL uses AVX2 only, even if they have AVX-512 with twice the
throughput. oneDNN, which torch uses for half dtypes, uses AVX-512: the products of a training step take half the time
(bench/products.py). With both limited to AVX2, oneDNN takes a tenth less time. On Intel processors tfkit keeps MKL for plain
weights. Packed weights are faster there too, with few rows (small_batch.py).

The choice is a fixed rule and not a measurement, so that results on one machine never change. It is made once, at import.
`torch.backends.mkldnn.flags(enabled=False)` turns oneDNN off.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from .plain_tensors import are_plain, may_read

VENDORS = ("AuthenticAMD", "HygonGenuine")


def vendor() -> str:
    """The vendor id of the processor, such as `AuthenticAMD`; empty if it is unknown."""
    return processor_fact("vendor_id").rpartition(", ")[2]  # on Windows `AMD64 Family 26 Model 2 Stepping 1, AuthenticAMD`


def processor_fact(name: str) -> str:
    """A line of Linux's description of the processor, such as `model name`; elsewhere the one text that Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() == name), "")


def is_faster() -> bool:
    """Whether oneDNN multiplies faster than MKL on this processor."""
    vectors = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return vectors and bool(torch.backends.mkl.is_available()) and vendor() in VENDORS  # type: ignore[no-untyped-call]


def probe() -> Callable[..., Tensor] | None:
    """The product that torch's compiler calls on a CPU, or None if this torch lacks it.

    The function is private, so its result is compared with torch's own for one small product.
    """
    if not torch._C._has_mkldnn:
        return None
    try:
        found: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
        left, right = torch.arange(6.0, device="cpu").view(2, 3), torch.arange(12.0, device="cpu").view(3, 4)
        result = found(left, right.t(), torch.ones(4, device="cpu"), "none", [], "")
        are_plain(left)  # raises if this torch lacks one of the private functions that it calls
        if torch.equal(result, left @ right + 1):
            return found
    except (AttributeError, RuntimeError, TypeError, ValueError):
        pass
    return None


def probe_packing() -> Callable[..., Tensor] | None:
    """The private function that packs a weight for `product`, or None if this torch lacks it."""
    try:
        found: Callable[..., Tensor] = torch.ops.mkldnn._reorder_linear_weight
        left, right = torch.arange(6.0, device="cpu").view(2, 3), torch.arange(12.0, device="cpu").view(4, 3)
        multiply = probe()
        if multiply is not None and torch.equal(multiply(left, found(right, None), None, "none", [], ""), left @ right.t()):
            return found
    except (AttributeError, RuntimeError, TypeError, ValueError):
        pass
    return None


def can_multiply(*tensors: Tensor | None) -> bool:
    """Whether oneDNN is faster with plain weights, enabled and able to multiply these tensors.

    They must be plain float32 CPU tensors, and nothing may observe or replace operators: a compiler, a tracer, autocast,
    `torch.func`, forward-mode differentiation, modes and tensor subclasses get torch's own operators.
    """
    return PRODUCT is not None and may_multiply(*tensors)


def can_pack(*tensors: Tensor | None) -> bool:
    """Whether oneDNN can pack weights, and is enabled and able to multiply these tensors; as `can_multiply`."""
    return PACK is not None and may_multiply(*tensors)


def may_multiply(*tensors: Tensor | None) -> bool:
    """Whether oneDNN is enabled and able to multiply these tensors with a plain weight, faster or not; as `can_multiply`."""
    return MULTIPLY is not None and may_read(*tensors) and bool(torch._C._get_mkldnn_enabled())


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, x (N, in), W (out, in) or packed, b (out,) -> (N, out). Strides are arbitrary but must not overlap."""
    multiply = PRODUCT or MULTIPLY
    assert multiply is not None
    return multiply(x, weight, bias, "none", [], "")


MULTIPLY = probe()
PRODUCT = MULTIPLY if is_faster() else None
"""The product with a plain weight, where it is faster than MKL's."""
PACK = probe_packing()
