"""Two implementations of one model, held against each other in float64: outputs, and the gradient of every parameter.

They may differ by rounding and by nothing else. With u = 2^-53, and n roundings at most on the way of a number through the
model and back, the computed values are those of a model whose parameters and intermediate values are off by a relative n u
or less. What that does to the values is measured, not guessed: the other model runs again with every parameter moved by a
relative 2^-30, up or down at random, and the change, scaled to n u, is what rounding is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tfkit.plugin.model_parts import MultiHeadAttention

from .name_maps import NameMap, translated

UNIT = 2.0**-53
NUDGE = 2.0**-30

Values = dict[str, Tensor]


class _Float32MeansFloat64(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        function = torch.Tensor.double if function is torch.Tensor.float else function
        named = {name: _wider(value) for name, value in (kwargs or {}).items()}
        return function(*(_wider(value) for value in args), **named)


def _wider(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def all_in_float64() -> Iterator[None]:
    """Build and run other people's models in float64 throughout.

    Norms, softmax, rotary angles and position tables are written with float32 in them, so that a model in float64 is still
    rounded to float32 on the way; in here float32 means float64.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(torch, "FloatTensor", torch.DoubleTensor), _Float32MeansFloat64():
            yield
    finally:
        torch.set_default_dtype(before)


def weights_of(model: nn.Module) -> Values:
    """What a model has to give or to take: its parameters, and the biases that are frozen or kept as buffers."""
    both = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor for name, tensor in both if tensor.requires_grad or name.endswith("bias")}


@torch.no_grad()
def shake(model: nn.Module, seed: int = 0) -> None:
    """Give every weight values of its own, so that none stands in for another: matrices that keep the size of what they
    multiply, norms around what they were, biases around 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(weights_of(model).items()):
        drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if tensor.dim() <= 1 or name.endswith("bias"):
            tensor.add_(0.3 * drawn)
        else:
            tensor.copy_(drawn * tensor.shape[-1] ** -0.5)


@torch.no_grad()
def copy_weights(ours: nn.Module, theirs: nn.Module, name_map: NameMap) -> None:
    """Ours becomes theirs: each weight has its counterpart, and none of theirs is left over."""
    mine = weights_of(ours)
    for name, tensor in translated(mine, weights_of(theirs), name_map).items():
        assert mine[name].shape == tensor.shape, name
        mine[name].copy_(tensor)


def compare(
    ours: nn.Module,
    theirs: nn.Module,
    name_map: NameMap,
    run_ours: Callable[[], Values],
    run_theirs: Callable[[], Values],
    real: Tensor,
) -> None:
    """Copy their weights into ours; the outputs at the `real` (B, L) tokens and all gradients then agree to rounding."""
    copy_weights(ours, theirs, name_map)
    found, gradients = values_of(ours, run_ours, real)
    with all_in_float64():
        expected, their_gradients = values_of(theirs, run_theirs, real)
        with _nudged(theirs):
            moved, moved_gradients = values_of(theirs, run_theirs, real)
    roundings = chain(ours, real)
    _agree(found, expected, moved, roundings)
    _agree(
        gradients,
        translated(gradients, their_gradients, name_map),
        translated(gradients, moved_gradients, name_map),
        roundings,
    )


def values_of(model: nn.Module, run: Callable[[], Values], real: Tensor) -> tuple[Values, Values]:
    """The outputs at real tokens, and the gradients of a sum of all outputs under random weights."""
    model.zero_grad()
    outputs = {name: tensor[real] if tensor.dim() == 3 else tensor for name, tensor in run().items()}
    generator = torch.Generator().manual_seed(1)
    drawn = {name: torch.randn(outputs[name].shape, generator=generator, dtype=torch.float64) for name in sorted(outputs)}
    torch.stack([(outputs[name] * drawn[name]).sum() for name in outputs]).sum().backward()
    gradients = {
        name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.clone()
        for name, tensor in weights_of(model).items()
    }
    return {name: tensor.detach() for name, tensor in outputs.items()}, gradients


@contextmanager
def _nudged(model: nn.Module) -> Iterator[None]:
    generator = torch.Generator().manual_seed(2)
    kept = {name: tensor.detach().clone() for name, tensor in weights_of(model).items()}
    with torch.no_grad():
        for tensor in weights_of(model).values():
            tensor.mul_(1 + NUDGE * (torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1))
    yield
    with torch.no_grad():
        for name, tensor in weights_of(model).items():
            tensor.copy_(kept[name])


def chain(model: Any, real: Tensor) -> int:
    """How many roundings a number can meet on its way through the model and back: a product with a matrix is a sum over its
    inputs, attention sums over the keys twice, and the gradient of a weight is a sum over all tokens."""
    attentions = sum(isinstance(module, MultiHeadAttention) for module in model.modules())
    repeats = len(model.sites) // attentions
    widths = sum(parameter.shape[-1] for parameter in model.parameters())
    return 2 * (repeats * widths + 2 * len(model.sites) * real.shape[1]) + real.numel()


def _agree(found: Values, expected: Values, moved: Values, roundings: int) -> None:
    assert found.keys() == expected.keys()
    change = max(float((moved[name] - expected[name]).abs().max()) for name in expected)
    allowed = roundings * UNIT * change / NUDGE
    largest = max(float(tensor.abs().max()) for tensor in expected.values())
    assert allowed < 1e-10 * largest, "the models are too sensitive for rounding to be distinguished from an error"
    for name, tensor in found.items():
        assert torch.isfinite(tensor).all(), name
        difference = float((tensor - expected[name]).abs().max())
        assert difference <= allowed, f"{name}: {difference:.1e}, where rounding explains {allowed:.1e}"
