"""Mutants of activations, and of the feed-forward layer around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfkit.plugin.model_parts import FeedForward

from .mutant import Change, declares, law_mutants, made


def _as(function: Callable[[Tensor], Tensor]) -> Change:
    return made(lambda x, options: function(x))


class _WrongSlope(torch.autograd.Function):
    """relu whose backward pass lets everything through."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return functional.relu(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def _open_slope(x: Tensor) -> Tensor:
    found: Tensor = _WrongSlope.apply(x)  # type: ignore[no-untyped-call]
    return found


def _writes(x: Tensor) -> Tensor:
    done = functional.silu(x)
    x.detach().copy_(done.detach())
    return done


class _Odd(FeedForward):
    """A layer that computes its features by a rule of its own."""

    def __init__(
        self, input: nn.Linear, gate: nn.Linear | None, output: nn.Linear, activate: Any, dropout: float, rule: Any
    ) -> None:
        super().__init__(input, gate, output, activate, dropout)
        self.rule = rule

    def forward(self, x: Tensor, run: Any, index: int) -> Tensor:
        gate = self.gate if self.gate is not None else self.input
        found: Tensor = self.output(self.rule(self.activate, gate(x), self.input(x)))
        return found


def _block(rule: Callable[[Any, Tensor, Tensor], Tensor]) -> Change:
    """The layer's features are `rule(f, gate(x), input(x))`."""
    return lambda subject: replace(
        subject, block=lambda input, gate, output, activate, dropout: _Odd(input, gate, output, activate, dropout, rule)
    )


def _shifted(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x) - 0.001


def _overflows(x: Tensor) -> Tensor:
    return x * (x.exp() / (1 + x.exp()))


MUTANTS = law_mutants(
    "activation",
    gelu=[
        (
            "gelu_as_tanh",
            "the tanh approximation in place of the exact function",
            _as(lambda x: functional.gelu(x, approximate="tanh")),
        ),
        ("gelu_as_quick", "x sigmoid(1.702 x) in place of the exact function", _as(lambda x: x * torch.sigmoid(1.702 * x))),
        ("gelu_claims", "its entry says that it never falls", declares(claims=lambda options: frozenset({"monotone"}))),
    ],
    gelu_tanh=[
        ("gelu_tanh_as_exact", "the exact function in place of the tanh approximation", _as(functional.gelu)),
        (
            "gelu_tanh_factor",
            "0.044 in place of 0.044715",
            _as(
                lambda x: (
                    x.double() / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x.double() + 0.044 * x.double() ** 3)))
                ).to(x.dtype)
            ),
        ),
    ],
    quick_gelu=[
        ("quick_gelu_factor", "1.7 in place of 1.702", _as(lambda x: x * torch.sigmoid(1.7 * x))),
    ],
    silu=[
        ("silu_as_sigmoid", "the factor x is missing", _as(torch.sigmoid)),
        ("silu_overflows", "exp(x) / (1 + exp(x)): NaN for large x", _as(_overflows)),
        ("silu_writes", "computed in place", _as(_writes)),
        ("silu_half_twice", "half dtypes are rounded twice", _as(lambda x: x * torch.sigmoid(x))),
        (
            "silu_float32",
            "half-precision inputs give float32 outputs",
            _as(lambda x: functional.silu(x.to(torch.promote_types(x.dtype, torch.float32)))),
        ),
    ],
    relu=[
        ("relu_leaky", "numbers below 0 are let through, at 1 %", _as(lambda x: functional.leaky_relu(x, 0.01))),
        ("relu_capped", "numbers above 6 are cut off", _as(functional.relu6)),
        ("relu_slope", "the gradient goes through everywhere", _as(_open_slope)),
        ("relu_detached", "no gradient goes through", _as(lambda x: functional.relu(x).detach())),
        (
            "ffn_tokens",
            "the features of a token are those of the one before",
            _block(lambda f, gate, inner: f(inner.roll(1, 1))),
        ),
    ],
    relu_squared=[
        ("relu_squared_plain", "the square is missing", _as(functional.relu)),
        ("relu_squared_both", "numbers below 0 are squared too", _as(lambda x: x.square())),
    ],
    tanh=[
        ("tanh_as_sigmoid", "sigmoid(2x) without 2 y - 1", _as(lambda x: torch.sigmoid(2 * x))),
    ],
    identity=[
        ("identity_centred", "the mean of the features is subtracted", _as(lambda x: x - x.mean(-1, keepdim=True))),
    ],
    glu=[
        ("glu_as_softmax", "a softmax over the features in place of sigmoids", _as(lambda x: torch.softmax(x, -1))),
        ("ffn_gate_missing", "the gate is left out", _block(lambda f, gate, inner: f(inner))),
    ],
    swiglu=[
        ("swiglu_as_gelu", "the gate goes through gelu", _as(functional.gelu)),
        ("ffn_gate_added", "the gate is added", _block(lambda f, gate, inner: f(gate) + inner)),
    ],
    reglu=[
        ("reglu_shifted", "a closed gate lets -0.001 through", _as(_shifted(functional.relu))),
        ("ffn_gate_both", "the function acts on both projections", _block(lambda f, gate, inner: f(gate) * f(inner))),
    ],
    geglu=[
        (
            "geglu_as_tanh",
            "the tanh approximation in place of the exact function",
            _as(lambda x: functional.gelu(x, approximate="tanh")),
        ),
        ("geglu_ungated", "its entry says that it has no gate", declares(gated=False)),
        ("ffn_gate_other", "the function acts on the other projection", _block(lambda f, gate, inner: gate * f(inner))),
    ],
)
