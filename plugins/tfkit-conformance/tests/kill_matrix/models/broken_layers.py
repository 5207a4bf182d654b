"""Errors inside a layer: norms, residuals, feed-forward layer, dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from tfkit import Model
from tfkit.inspection import Stack
from tfkit.nn.stack import Residual
from tfkit.plugin.model_parts import FeedForward, MultiHeadAttention, NodeOutput, StackContext

from .tampering import each, stack, swap


def residual_from_normed(model: Model) -> Model:
    for layer in stack(model, True).layers:

        def forward(self: Any, x: Tensor, run: StackContext, index: int) -> Tensor:
            for name, branch in self.branches.items():
                normed = self.norms[name](x)
                x = self.residuals[name](normed, branch(normed, run, index))
            return x

        swap(layer, "forward", forward)
    return model


def final_norm_skipped(model: Model) -> Model:
    def forward(self: Stack, *arguments: Any, **keywords: Any) -> NodeOutput:
        kept = self.final_norm
        self.final_norm = None
        try:
            return Stack.forward(self, *arguments, **keywords)
        finally:
            self.final_norm = kept

    swap(stack(model, True), "forward", forward)
    return model


def residual(change: Callable[[Residual, Tensor, Tensor], Tensor]) -> Callable[[Model], Model]:
    def apply(model: Model) -> Model:
        swap(next(each(model, Residual)), "forward", change)
        return model

    return apply


def norm_after_dropped(model: Model) -> Model:
    layer = stack(model, False).layers[0]
    norm = dict(layer.get_submodule("norms").named_children())["ffn"]
    swap(norm, "forward", lambda self, x: x)
    return model


def layers_swapped(model: Model) -> Model:
    body = stack(model, True)
    body.order = body.order[::-1]
    for attention in each(model, MultiHeadAttention):
        attention.choices = {index: choice for choice in attention.choices.values() for index in range(len(body.order))}
    return model


def tokens_mixed(model: Model) -> Model:
    def forward(self: FeedForward, x: Tensor, run: StackContext, index: int) -> Tensor:
        return FeedForward.forward(self, x + 0.01 * x.roll(1, 1), run, index)

    swap(next(each(model, FeedForward)), "forward", forward)
    return model


def activation_missing(model: Model) -> Model:
    next(each(model, FeedForward)).activate = _nothing
    return model


def _nothing(x: Tensor) -> Tensor:
    return x


def activation_other(model: Model) -> Model:
    next(each(model, FeedForward)).activate = functional.leaky_relu
    return model


def bias_dropped(model: Model) -> Model:
    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)

    swap(next(each(model, FeedForward)).output, "forward", forward)
    return model


def dropout_in_evaluation(model: Model) -> Model:
    swap(next(each(model, nn.Dropout)), "forward", lambda self, x: functional.dropout(x, self.p, True))
    return model


def dropout_never(model: Model) -> Model:
    for module in each(model, nn.Dropout):
        swap(module, "forward", lambda self, x: x)
    return model


def dropout_off(path: str) -> Callable[[Model], Model]:
    """One dropout passes on what it is given."""

    def apply(model: Model) -> Model:
        swap(model.get_submodule(f"nodes.{path}"), "forward", lambda self, x: x)
        return model

    return apply


def dropout_not_called(model: Model) -> Model:
    residual = next(each(model, Residual))
    swap(residual, "forward", lambda self, x, branch: self.skip * x + self.scale * branch)
    return model


def dropout_other(p: float) -> Callable[[Model], Model]:
    def apply(model: Model) -> Model:
        next(each(stack(model, True), Residual)).dropout.p = p
        return model

    return apply


def dropout_unscaled(model: Model) -> Model:
    def forward(self: nn.Dropout, x: Tensor) -> Tensor:
        return functional.dropout(x, self.p, self.training) * (1.0 - self.p if self.training else 1.0)

    swap(next(each(stack(model, True), nn.Dropout)), "forward", forward)
    return model


def attention_dropout(p: float) -> Callable[[Model], Model]:
    def apply(model: Model) -> Model:
        attention = next(each(stack(model, True), MultiHeadAttention))
        attention.config = replace(attention.config, dropout=p)
        return model

    return apply


def shared_module(name: str) -> Callable[[Model], Model]:
    def apply(model: Model) -> Model:
        first, second = (layer.get_submodule("branches") for layer in stack(model, True).layers[:2])
        second.add_module(name, first.get_submodule(name))
        return model

    return apply


def shared_weight(model: Model) -> Model:
    first, second = (layer.get_submodule("branches.self_attention.query") for layer in stack(model, True).layers[:2])
    second.weight = first.weight
    return model


def other_module_called(name: str) -> Callable[[Model], Model]:
    def apply(model: Model) -> Model:
        first, second = (layer.get_submodule(f"branches.{name}") for layer in stack(model, True).layers[:2])
        second.__dict__["other"] = first
        swap(second, "forward", lambda self, *arguments: type(self).forward(self.__dict__["other"], *arguments))
        return model

    return apply
