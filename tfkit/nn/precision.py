"""The precision of a model's linear maps, chosen when it is loaded: float32, or int8 for decoding on a CPU (cpu/int8.py).

int8 are the large projections of attention, feed-forward layers and heads. All else, such as norms, scores, embeddings and
recurrent cells, stays float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import BuildError, Diagnostic
from .cpu.int8 import HEAD, KERNELS, Int8Linear, is_finite, is_large, kernel_here
from .cpu.int8_head import Int8Head
from .feed_forward import FeedForward
from .multi_head import MultiHeadAttention
from .tokens import TokenLogits

if TYPE_CHECKING:
    from .model import Model

PRECISIONS = ("float32", "int8")


def check_precision(precision: str, device: str | torch.device) -> None:
    """Check that this machine can compute in a precision.

    Args:
        precision: one of `PRECISIONS`.
        device: where the model will be.

    Raises:
        BuildError: there is no such precision, or it cannot be computed there.
    """
    if precision not in PRECISIONS:
        message = f"there is no precision {precision!r}"
        raise BuildError(Diagnostic("TFK047", message, f"the precisions are {', '.join(PRECISIONS)}"))
    if precision == "float32":
        return
    if torch.device(device).type != "cpu":
        raise BuildError(Diagnostic("TFK047", f"int8 is for CPUs, and the device is {device}", "load with float32 there"))
    if kernel_here() is None:
        needs = "; or ".join(f"{' and '.join(kernel.needs)} ({kernel.name})" for kernel in KERNELS)
        message = "this processor, or this build of torch, has no int8 products"
        raise BuildError(Diagnostic("TFK047", message, f"load with float32; int8 needs {needs}"))


def to_int8(model: Model, mapped: Mapping[str, Tensor] | None = None) -> None:
    """Make every large linear map of a model int8. The model then decodes only: it has no gradients and cannot be saved.

    Args:
        model: a float32 model on a CPU.
        mapped: its weights by name, mapped from the file of the model, if those of the model are too. The tables of embeddings
            and heads are then taken from here, and occupy memory only where single rows were read; all else is copied.

    Raises:
        BuildError: as in `check_precision`, or the model is not float32.
    """
    check_precision("int8", model.device)
    kernel = kernel_here()
    assert kernel is not None
    if model.dtype != torch.float32:
        message = f"the weights are {str(model.dtype).removeprefix('torch.')}; int8 is made from float32"
        raise BuildError(Diagnostic("TFK047", message, "load it without `precision`"))
    for name, weight in int8_weights(model).items():
        module = model.get_submodule(name)
        if not is_finite(weight):
            continue
        if isinstance(module, TokenLogits):
            module.int8 = Int8Head(weight, kernel)
        else:
            assert isinstance(module, nn.Linear)
            model.set_submodule(name, Int8Linear(module, kernel))
    if mapped is not None:
        tables = {id(weight) for module in model.modules() for weight in _table(module)}
        for name, parameter in model.named_parameters():
            parameter.data = mapped[name] if id(parameter) in tables else parameter.detach().clone()
    model.requires_grad_(False)
    model.precision = "int8"


def _table(module: nn.Module) -> list[Tensor]:
    """The weight of which single rows are read, if the module has one."""
    if isinstance(module, TokenLogits):
        return [] if module.logits is None or module.int8 is None else [module.logits.weight]
    return [module.weight] if isinstance(module, nn.Embedding) else []


def int8_weights(model: Model) -> dict[str, Tensor]:
    """The weights that int8 is for, if their numbers are finite.

    Args:
        model: a model, which may be on the meta device.

    Returns:
        By module, the weight (out, in). The module is an `nn.Linear`, or a `TokenLogits` whose table another node may own.
    """
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, TokenLogits):
            owner = model.plan.wires[name.removeprefix("nodes.")].owner
            found[name] = module.logits.weight if owner is None else model.nodes[owner].table()  # type: ignore[union-attr,operator]
        elif isinstance(module, (MultiHeadAttention, FeedForward)):
            linears = {child: one for child, one in module.named_children() if type(one) is nn.Linear}
            found |= {f"{name}.{child}": linear.weight for child, linear in linears.items()}
    heads = {name for name in found if isinstance(model.get_submodule(name), TokenLogits)}
    return {name: weight for name, weight in found.items() if is_large(weight, HEAD if name in heads else 1)}


def int8_plan(model: Model) -> dict[str, Any]:
    """What `to_int8` would make of a model here.

    Args:
        model: a model, which may be on the meta device.

    Returns:
        `precision`; `kernel`, how its products are computed; `weights`, the shape of each int8 weight by module; `bytes`, the
        memory of all weights except tables of embeddings, which are read from the file; `float32_bytes`, of all weights in
        float32.
    """
    kernel, weights = kernel_here(), int8_weights(model)
    read = {id(weight) for module in model.modules() for weight in _table(module)} | {id(each) for each in weights.values()}
    floats = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in read)
    integers = sum(weight.numel() + 4 * len(weight) for weight in weights.values())
    return {
        "precision": "int8",
        "kernel": kernel and kernel.name,
        "weights": {name: list(weight.shape) for name, weight in weights.items()},
        "bytes": integers + 4 * floats,
        "float32_bytes": 4 * sum(parameter.numel() for parameter in model.parameters()),
    }
