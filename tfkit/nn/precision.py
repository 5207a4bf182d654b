"""The precision of a model's linear maps, chosen when it is loaded.

float32, or for decoding on a CPU bfloat16 (cpu/bfloat16.py) or int8 (cpu/int8.py).

Rounded are the large projections of attention, feed-forward layers and heads. All else, such as norms, scores, embeddings and
recurrent cells, stays float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..cpu.bfloat16 import INSTRUCTIONS, Bfloat16Weight, bfloat16_kernel_here
from ..cpu.int8 import HEAD, Int8Weight, fastest, is_finite, is_large
from ..cpu.low_precision import LowPrecisionHead, LowPrecisionLinear, LowPrecisionWeight
from ..errors import BuildError, Diagnostic
from ..slots.processor_kernels import Int8Kernel
from .layers import FeedForward
from .multi_head import MultiHeadAttention
from .tokens import TokenLogits

if TYPE_CHECKING:
    from .model import Model

Kernels = Sequence[Int8Kernel]


@dataclass(frozen=True)
class LowPrecision:
    """A precision below float32.

    Args:
        kernel: how this machine computes its products with the installed int8 kernels, in words; None if it cannot.
        needs: what a machine needs for it.
        round: the rounded form of a weight (out, in).
        bytes: memory of the rounded form.
    """

    kernel: Callable[[Kernels], str | None]
    needs: Callable[[Kernels], str]
    round: Callable[[Tensor, Kernels], LowPrecisionWeight]
    bytes: Callable[[Tensor], int]


def _int8_kernel(kernels: Kernels) -> str | None:
    kernel = fastest(kernels)
    return None if kernel is None else kernel.summary


def _int8(weight: Tensor, kernels: Kernels) -> LowPrecisionWeight:
    kernel = fastest(kernels)
    assert kernel is not None
    return Int8Weight(weight, kernel)


LOW_PRECISIONS = {
    "bfloat16": LowPrecision(
        lambda kernels: bfloat16_kernel_here(),
        lambda kernels: " or ".join(INSTRUCTIONS),
        lambda weight, kernels: Bfloat16Weight(weight),
        lambda weight: 2 * weight.numel(),
    ),
    "int8": LowPrecision(
        _int8_kernel,
        lambda kernels: "; or ".join(f"{' and '.join(kernel.needs)} ({kernel.summary})" for kernel in kernels),
        _int8,
        lambda weight: weight.numel() + 4 * len(weight),
    ),
}
PRECISIONS = ("float32", *LOW_PRECISIONS)


def check_precision(precision: str, device: str | torch.device, kernels: Kernels) -> None:
    """Check that this machine can compute in a precision.

    Args:
        precision: one of `PRECISIONS`.
        device: where the model will be.
        kernels: the installed int8 kernels.

    Raises:
        BuildError: there is no such precision, or it cannot be computed there.
    """
    if precision not in PRECISIONS:
        message = f"there is no precision {precision!r}"
        raise BuildError(Diagnostic("TFK047", message, f"the precisions are {', '.join(PRECISIONS)}"))
    if precision == "float32":
        return
    if torch.device(device).type != "cpu":
        message = f"{precision} is for CPUs, and the device is {device}"
        raise BuildError(Diagnostic("TFK047", message, "load with float32 there"))
    low = LOW_PRECISIONS[precision]
    if low.kernel(kernels) is None:
        message = f"this processor, or this build of torch, has no {precision} products"
        raise BuildError(Diagnostic("TFK047", message, f"load with float32; {precision} needs {low.needs(kernels)}"))


def round_weights(model: Model, precision: str, kernels: Kernels, mapped: Mapping[str, Tensor] | None = None) -> None:
    """Round every large linear map of a model. The model then decodes only: it has no gradients and cannot be saved.

    Args:
        model: a float32 model on a CPU.
        precision: "bfloat16" or "int8".
        kernels: the installed int8 kernels, of which the fastest is used.
        mapped: its weights by name, mapped from the file of the model, if those of the model are too. The tables of embeddings
            and heads are then taken from here, and occupy memory only where single rows were read; all else is copied.

    Raises:
        BuildError: as in `check_precision`, or the model is not float32.
    """
    check_precision(precision, model.device, kernels)
    if model.dtype != torch.float32:
        message = f"the weights are {str(model.dtype).removeprefix('torch.')}; {precision} is made from float32"
        raise BuildError(Diagnostic("TFK047", message, "load it without `precision`"))
    for name, weight in large_weights(model, _int8_of(precision, kernels)).items():
        module = model.get_submodule(name)
        if not is_finite(weight):
            continue
        rounded = LOW_PRECISIONS[precision].round(weight, kernels)
        if isinstance(module, TokenLogits):
            module.low_precision = LowPrecisionHead(rounded)
        else:
            assert isinstance(module, nn.Linear)
            model.set_submodule(name, LowPrecisionLinear(module, rounded))
    if mapped is not None:
        tables = {id(weight) for module in model.modules() for weight in _table(module)}
        for name, parameter in model.named_parameters():
            parameter.data = mapped[name] if id(parameter) in tables else parameter.detach().clone()
    model.requires_grad_(False)
    model.precision = precision


def _table(module: nn.Module) -> list[Tensor]:
    """The weight of which single rows are read, if the module has one."""
    if isinstance(module, TokenLogits):
        return [] if module.logits is None or module.low_precision is None else [module.logits.weight]
    return [module.weight] if isinstance(module, nn.Embedding) else []


def _int8_of(precision: str, kernels: Kernels) -> Int8Kernel | None:
    return fastest(kernels) if precision == "int8" else None


def large_weights(model: Model, kernel: Int8Kernel | None = None) -> dict[str, Tensor]:
    """The weights that a lower precision is for, if their numbers are finite.

    Args:
        model: a model, which may be on the meta device.
        kernel: that of int8; None for bfloat16.

    Returns:
        By module, the weight (out, in). The module is an `nn.Linear`, or a `TokenLogits` whose table another node may own.
    """
    weights: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, TokenLogits):
            owner = model.plan.wires[name.removeprefix("nodes.")].owner
            weights[name] = module.logits.weight if owner is None else model.nodes[owner].table()  # type: ignore[union-attr,operator]
        elif isinstance(module, (MultiHeadAttention, FeedForward)):
            linears = {child: one for child, one in module.named_children() if isinstance(one, nn.Linear)}
            weights |= {f"{name}.{child}": linear.weight for child, linear in linears.items()}
    heads = {name for name in weights if isinstance(model.get_submodule(name), TokenLogits)}
    return {name: weight for name, weight in weights.items() if is_large(weight, HEAD if name in heads else 1, kernel)}


def rounding_plan(model: Model, precision: str, kernels: Kernels) -> dict[str, Any]:
    """What `round_weights` would make of a model here.

    Args:
        model: a model, which may be on the meta device.
        precision: "bfloat16" or "int8".
        kernels: the installed int8 kernels.

    Returns:
        `precision`; `kernel`, how its products are computed; `weights`, the shape of each rounded weight by module; `bytes`,
        the memory of all weights except tables of embeddings, which are read from the file; `float32_bytes`, of all weights
        in float32.
    """
    low, weights = LOW_PRECISIONS[precision], large_weights(model, _int8_of(precision, kernels))
    read = {id(weight) for module in model.modules() for weight in _table(module)} | {id(weight) for weight in weights.values()}
    floats = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in read)
    rounded = sum(map(low.bytes, weights.values()))
    return {
        "precision": precision,
        "kernel": low.kernel(kernels),
        "weights": {name: list(weight.shape) for name, weight in weights.items()},
        "bytes": rounded + 4 * floats,
        "float32_bytes": 4 * sum(parameter.numel() for parameter in model.parameters()),
    }
