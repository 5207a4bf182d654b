"""float32 products with oneDNN, on processors where MKL is slow: y = x W^T + b and its gradients dx = dy W, dW = dy^T x,
db = sum dy. MKL and oneDNN sum the same products, in different order.

Torch multiplies float32 on a CPU with MKL. On AMD processors MKL uses AVX2 only, even if they have AVX-512 with twice the
throughput. oneDNN, which torch uses for half dtypes, uses AVX-512: the products of a training step take half the time
(bench/products.py). Where both use AVX2, as on Zen 3, MKL is faster. A processor limited to AVX2 by the environment does not
behave as one that has AVX2 alone, so `MEASURED` holds real machines only. Other processors keep MKL, torch's own choice. Packed
weights are another question, with few rows (small_batch.py).

The choice is made once, at import, by these measurements and not by a new one, so that results on one machine never change.
`torch.backends.mkldnn.flags(enabled=False)` turns oneDNN off.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

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


@dataclass(frozen=True)
class MeasuredClass:
    """A class of processors on which the products of training steps were measured.

    Args:
        processors: which ones, in words.
        vendors: their vendor ids.
        avx512: whether they have AVX-512.
        ratio: time of MKL's products over that of oneDNN's.
        machine: where it was measured.
    """

    processors: str
    vendors: tuple[str, ...]
    avx512: bool
    ratio: float
    machine: str


MEASURED = (
    MeasuredClass("AMD processors with AVX-512", VENDORS, True, 1.96, "AMD EPYC with AVX-512, torch 2.13.0, bench/products.py"),
    MeasuredClass("AMD processors without AVX-512", VENDORS, False, 0.87, "AMD EPYC of the generation Zen 3, torch 2.13.0"),
    MeasuredClass(
        "Intel processors with AVX-512", ("GenuineIntel",), True, 1.0, "Intel Xeon with AMX, torch 2.13.0, bench/packed.py"
    ),
)
MIN_RATIO = 1.05
"""oneDNN takes the place of torch's own choice where it is faster by this factor."""


def measured_class() -> MeasuredClass | None:
    """The class of this processor; None if none like it was measured, and where torch was built without MKL."""
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX") or not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return None
    here, wide = vendor(), capability.startswith("AVX512")
    return next((kind for kind in MEASURED if here in kind.vendors and kind.avx512 is wide), None)


def is_faster() -> bool:
    """Whether oneDNN multiplies faster than MKL on this processor."""
    kind = measured_class()
    return kind is not None and kind.ratio >= MIN_RATIO


def are_plain(*tensors: Tensor | None) -> bool:
    """Whether these are plain CPU tensors, and no mode, tracer, transform (`torch.func`) or forward-mode derivative is active.

    Args:
        *tensors: the inputs of the kernel.

    Returns:
        True if a kernel may read their memory and compute what operators of torch would.
    """
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False
    if forward_ad._current_level >= 0 or torch._C._get_tracing_state() is not None:
        return False
    for tensor in tensors:  # noqa: SIM110  a generator takes several times as long
        if tensor is not None and torch._C._dispatch_keys(tensor) not in PLAIN:
            return False
    return True


def may_read(*tensors: Tensor | None) -> bool:
    """Whether a kernel for float32 may read these tensors: plain ones of float32, not empty, without a compiler or autocast."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or not are_plain(*tensors):
        return False
    for tensor in tensors:  # noqa: SIM110
        if tensor is not None and (tensor.dtype != torch.float32 or tensor.numel() == 0):
            return False
    return True


def _plain() -> tuple[object, ...]:
    """The dispatch keys of plain CPU tensors, created outside and inside of inference mode."""
    with torch.inference_mode():
        inference = torch._C._dispatch_keys(torch.ones(1, device="cpu"))
    return torch._C._dispatch_keys(torch.ones(1, device="cpu")), inference


PLAIN = _plain()


def probe() -> Callable[..., Tensor] | None:
    """The product that torch's compiler calls on a CPU, or None if this torch lacks it.

    The function is private, so its result is compared with torch's own for one small product.
    """
    if not torch._C._has_mkldnn:
        return None
    try:
        multiply: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
        left, right = torch.arange(6.0, device="cpu").view(2, 3), torch.arange(12.0, device="cpu").view(3, 4)
        result = multiply(left, right.t(), torch.ones(4, device="cpu"), "none", [], "")
        are_plain(left)  # raises if this torch lacks one of the private functions that it calls
        if torch.equal(result, left @ right + 1):
            return multiply
    except (AttributeError, RuntimeError, TypeError, ValueError):
        pass
    return None


def probe_packing() -> Callable[..., Tensor] | None:
    """The private function that packs a weight for `product`, or None if this torch lacks it."""
    try:
        reorder: Callable[..., Tensor] = torch.ops.mkldnn._reorder_linear_weight
        left, right = torch.arange(6.0, device="cpu").view(2, 3), torch.arange(12.0, device="cpu").view(4, 3)
        multiply = probe()
        if multiply is not None and torch.equal(multiply(left, reorder(right, None), None, "none", [], ""), left @ right.t()):
            return reorder
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
MIN_TRAINING_WORK = 8_000_000
"""From this many multiplications per thread on, oneDNN is faster, including the cost of a Python autograd function."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., in), weight (out, in), bias (out,) -> (..., out)."""
    if PRODUCT is None or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return functional.linear(x, weight, bias)
    few = x.numel() * weight.shape[0] < MIN_TRAINING_WORK * torch.get_num_threads()
    if few or not can_multiply(x, weight, bias) or not weight.is_contiguous():
        return functional.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    """x (N, in), weight (out, in), bias (out,) or None -> (N, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        # Torch's own products support double backward and batched gradients.
        if torch.is_grad_enabled() or not can_multiply(gradient, x, weight):
            of_x = gradient @ weight if wants_x else None
            of_weight = gradient.t() @ x if wants_weight else None
        else:
            gradient = gradient.contiguous()
            of_x = gradient_of_input(gradient, weight) if wants_x else None
            of_weight = weight_gradient(gradient, x) if wants_weight else None
        return of_x, of_weight, gradient.sum(0) if wants_bias else None


def gradient_of_input(gradient: Tensor, weight: Tensor) -> Tensor:
    """dy W: (N, out) and (out, in) -> (N, in)."""
    return product(gradient, weight.t()) if can_multiply(gradient, weight) else gradient @ weight


def add_gradient_of_weight(gradient: Tensor, x: Tensor, total: Tensor) -> None:
    """Add dy^T x, of (N, out) and (N, in), to a total (out, in), which may have a wider dtype."""
    if can_multiply(gradient, x):
        total += weight_gradient(gradient, x)
    elif total.dtype == x.dtype:
        total.addmm_(gradient.t(), x)
    else:
        total += gradient.t() @ x


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """dy^T x (out, in). The longer side becomes the columns: three times as fast if it is a vocabulary."""
    if gradient.shape[1] > x.shape[1]:
        return product(x.t(), gradient.t()).t().contiguous()
    return product(gradient.t(), x.t())
