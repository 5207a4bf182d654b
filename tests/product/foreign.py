"""Parts of a third-party plugin: correct ones, which must pass every check, and wrong ones, which each break one rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from tfkit.builtin.attention.eager import attend as eager
from tfkit.builtin.attention.entries import EAGER
from tfkit.plugin import (
    Activation,
    AttentionOutput,
    NoOptions,
    Norm,
    OneOf,
    Options,
    Parameter,
    PositionScheme,
    Size,
    SublayerKind,
    SublayerOptions,
    hookimpl,
    linear,
)


class ShiftOptions(Options):
    """Options of `foreign.shift`; `step` has no default."""

    step: Annotated[float, Field(gt=0.0, lt=1.0)]
    way: Annotated[str, OneOf("up", "down")] = "up"


class MixerOptions(SublayerOptions):
    """Options of `foreign.mixer`."""

    d_inner: Size


class Shift(nn.Module):
    def __init__(self, step: float, stuck: bool = False) -> None:
        super().__init__()
        self.step, self.stuck = step, stuck

    def embed(self, x: Tensor, span) -> Tensor:
        positions = torch.arange(span.queries, device=x.device) if self.stuck else span.query_positions()
        features = torch.arange(1, x.shape[-1] + 1, device=x.device)
        return x + (self.step * positions[:, None] * features).sin().to(x.dtype)


class Centre(nn.Module):
    """x - mean: over the features, or, wrongly, over the tokens."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(self.axis, keepdim=True)


class Mixer(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.input, self.output = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, run, index: int) -> Tensor:
        return self.output(self.input(x).cos())


def build_shift(options, site):
    return Shift(options.step if options.way == "up" else -options.step)


def build_stuck(options, site):
    return Shift(0.5, stuck=True)


def build_centre(options, width):
    return Centre(-1)


def build_over_tokens(options, width):
    return Centre(1)


def build_mixer(options, facts, wiring):
    return Mixer(facts.width, options.d_inner)


def bend(x, options):
    return x.sin()


def one_more_key(inputs, options):
    mask = inputs.mask
    return eager(
        replace(inputs, prepared=None, mask=replace(mask, offset=mask.offset + 1) if mask.causal else mask), NoOptions()
    )


def billionth(inputs, options):
    return AttentionOutput(eager(replace(inputs, prepared=None), NoOptions()).output * (1 + 1e-9))


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.001 * gradient


def key_gradient(inputs, options):
    return eager(replace(inputs, prepared=None, key=Twice.apply(inputs.key)), NoOptions())


def _backend(name):
    return replace(EAGER, name=f"foreign.{name}", attend=f"product.foreign:{name}", prepare=None)


class Right:
    @hookimpl
    def tfkit_position_schemes(self):
        return [PositionScheme(name="foreign.shift", summary="", acts=frozenset({"embeddings"}), options=ShiftOptions,
                               build="product.foreign:build_shift")]  # fmt: skip

    @hookimpl
    def tfkit_norms(self):
        return [Norm(name="foreign.centre", summary="", parameters=lambda o, w: (), build="product.foreign:build_centre")]

    @hookimpl
    def tfkit_activations(self):
        return [Activation(name="foreign.bend", summary="", function="product.foreign:bend")]

    @hookimpl
    def tfkit_sublayer_kinds(self):
        def parameters(options, facts) -> tuple[Parameter, ...]:
            width, inner = facts.width, options.d_inner
            return (*linear("input", "ffn_in", width, inner, False), *linear("output", "ffn_out", inner, width, False))

        return [SublayerKind(name="foreign.mixer", summary="", options=MixerOptions, option_keys=("mixer",), reads="none",
                             parameters=parameters, build="product.foreign:build_mixer")]  # fmt: skip


class Wrong:
    @hookimpl
    def tfkit_attention_backends(self):
        return [_backend(name) for name in ("one_more_key", "billionth", "key_gradient")]

    @hookimpl
    def tfkit_position_schemes(self):
        return [PositionScheme(name="foreign.stuck", summary="", acts=frozenset({"embeddings"}),
                               build="product.foreign:build_stuck")]  # fmt: skip

    @hookimpl
    def tfkit_norms(self):
        return [Norm(name="foreign.over_tokens", summary="", parameters=lambda o, w: (),
                     build="product.foreign:build_over_tokens")]  # fmt: skip
