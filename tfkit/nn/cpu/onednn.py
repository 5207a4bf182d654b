"""float32 products by oneDNN, on processors that torch's own product does not use whole.

On a CPU torch multiplies float32 with MKL, which on AMD's processors keeps to AVX2: where they have AVX-512 it leaves half of
a core idle. oneDNN, which torch brings for its half types, does not: the products of a training step take half as long
(bench/products.py). Where both use the same instructions, on Intel's processors and on AMD's older ones, neither is worth a
change.

Who multiplies is a rule and no measurement, so that a machine gives the same bits every day. It is decided once, when this is
imported; `torch.backends.mkldnn.flags(enabled=False)` leaves everything to torch.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import forward_ad

VENDORS = ("AuthenticAMD", "HygonGenuine")


def vendor() -> str:
    """The vendor of the processor in its own words, such as `AuthenticAMD`; empty where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor().rpartition(", ")[2]  # on Windows `AMD64 Family 26 Model 2 Stepping 1, AuthenticAMD`
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def pays() -> bool:
    """Whether this processor is one on which oneDNN multiplies faster than MKL."""
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return wide and bool(torch.backends.mkl.is_available()) and vendor() in VENDORS  # type: ignore[no-untyped-call]


def probe() -> Callable[..., Tensor] | None:
    """The product that torch's compiler calls on a CPU. It is no public name, so a torch in which it is not what it was does
    without."""
    if not torch._C._has_mkldnn:
        return None
    try:
        found: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
        left, right = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(3, 4)
        given = found(left, right.t(), torch.ones(4), "none", [], "")
        _is_bare(left)
        if torch.equal(given, left @ right + 1):
            return found
    except (AttributeError, RuntimeError, TypeError, ValueError):
        pass
    return None


def probe_packing() -> Callable[..., Tensor] | None:
    """What lays a weight out for `product`, which is no public name either."""
    try:
        found: Callable[..., Tensor] = torch.ops.mkldnn._reorder_linear_weight
        left, right = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)
        if PRODUCT is not None and torch.equal(PRODUCT(left, found(right, None), None, "none", [], ""), left @ right.t()):
            return found
    except (AttributeError, RuntimeError, TypeError, ValueError):
        pass
    return None


def can_multiply(*tensors: Tensor | None) -> bool:
    """Whether nothing but a product of float32 numbers in memory is asked for, and oneDNN is there and not switched off.

    Whatever looks at torch's operators or stands in for tensors (a compiler, a tracer, autocast, `torch.func`, forward-mode
    differentiation, modes, subclasses) is given the operators that it knows.
    """
    return (
        PRODUCT is not None
        and not torch.compiler.is_compiling()
        and torch._C._get_mkldnn_enabled()
        and not torch.is_autocast_enabled("cpu")
        and _is_bare(*tensors)
    )


def _is_bare(*tensors: Tensor | None) -> bool:
    """Whether these are numbers in memory and nobody watches."""
    return (
        not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and forward_ad._current_level < 0
        and torch._C._get_tracing_state() is None
        and all(
            tensor is None
            or (tensor.dtype == torch.float32 and tensor.numel() > 0 and torch._C._dispatch_keys(tensor) in PLAIN)
            for tensor in tensors
        )
    )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b for x (N, in), W (out, in), both of any strides that overlap nowhere, or W packed, and b (out,) -> (N, out)."""
    assert PRODUCT is not None
    return PRODUCT(x, weight, bias, "none", [], "")


def _plain() -> tuple[object, ...]:
    """How torch dispatches on tensors in memory that are nothing more, made with gradients in mind or not."""
    with torch.inference_mode():
        inference = torch._C._dispatch_keys(torch.ones(1))
    return torch._C._dispatch_keys(torch.ones(1)), inference


PLAIN = _plain()
PRODUCT = probe() if pays() else None
PACK = probe_packing()
