"""Errors of a thousandth in single products, forward or backward, in float32 alone: in float64 these models are right.

A mutant replaces `forward` of a module that is called, or `torch.nn.functional.linear`, so that it acts whatever class computes
the product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tfkit import Model
from tfkit.inspection import TokenLogits, Tokens

from .tampering import swap

OFF = 1.001


class _Gradient(torch.autograd.Function):
    """x forward, and 1.001 times the gradient backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return OFF * gradients[0]


def wrong_gradient(y: Tensor) -> Tensor:
    made: Tensor = _Gradient.apply(y)  # type: ignore[no-untyped-call]
    return made


def times(y: Tensor) -> Tensor:
    return OFF * y


def off(*paths: str, how: Callable[[Tensor], Tensor] = times, when: Callable[[Any], bool] | None = None) -> Any:
    """What the modules `paths` give in float32 goes through `how`, where `when(module)`."""

    def forward(self: Any, *arguments: Any, **keywords: Any) -> Tensor:
        y: Tensor = type(self).forward(self, *arguments, **keywords)
        return how(y) if y.dtype == torch.float32 and (when is None or when(self)) else y

    def apply(model: Model) -> Model:
        for path in paths:
            swap(model.get_submodule(f"nodes.{path}"), "forward", forward)
        return model

    return apply


def off_node(kind: type[nn.Module], how: Callable[[Tensor], Tensor] = times) -> Callable[[Model], Model]:
    """The product with a table that a node of tokens or of logits calls, also where another node owns it."""

    def apply(model: Model) -> Model:
        owner = next(module for module in model.modules() if isinstance(module, Tokens) and module.embedding is not None)
        table: Any = owner.embedding

        def forward(self: Any, given: Tensor, *more: Any) -> Tensor:
            y: Tensor = type(self).forward(self, given, *more)
            is_head = given.is_floating_point()
            return how(y) if y.dtype == torch.float32 and is_head == (kind is TokenLogits) else y

        swap(table, "forward", forward)
        return model

    return apply


def off_everywhere(unless_hooked: bool) -> Callable[[Model], Model]:
    """Every linear map of the model; with `unless_hooked` only those without hooks."""

    def apply(model: Model) -> Model:
        paths = [name.removeprefix("nodes.") for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        changed: Model = off(*paths, when=_is_plain if unless_hooked else None)(model)
        return changed

    return apply


def _is_plain(module: nn.Module) -> bool:
    return not module._forward_hooks and not module._forward_pre_hooks


class _Linear(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        y = function(*arguments, **(keywords or {}))
        return OFF * y if function is functional.linear and y.dtype == torch.float32 else y


def off_function(model: Model) -> Model:
    """`torch.nn.functional.linear` while the model runs."""

    def call(self: Model, *arguments: Any, **keywords: Any) -> Any:
        with _Linear():
            return Model.forward(self, *arguments, **keywords)

    swap(model, "forward", call)
    return model


def off_while(learning: bool, path: str) -> Any:
    """One product where gradients are wanted, or where they are not."""
    return off(path, when=lambda _: torch.is_grad_enabled() is learning)


def off_in_steps(path: str) -> Callable[[Model], Model]:
    """One product with fewer positions than four: in the steps of decoding."""

    def forward(self: Any, x: Tensor, *more: Any) -> Tensor:
        y: Tensor = type(self).forward(self, x, *more)
        return OFF * y if y.dtype == torch.float32 and x.dim() == 3 and x.shape[1] < 4 else y

    def apply(model: Model) -> Model:
        swap(model.get_submodule(f"nodes.{path}"), "forward", forward)
        return model

    return apply
