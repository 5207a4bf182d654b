"""Mutants that keep the family of a part and change its formula: other slopes, other gates, other frequencies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tfkit import Catalogue
from tfkit.plugin import DenseBias, DistanceBias, LinearBias
from tfkit.plugin.model_parts import PositionRange
from tfkit_conformance.laws.law import PartUnderTest

from .mutant import Built, Change, LawMutant, law_mutants, made, overriding
from .rotary_mutants import spoilt

Bias = DenseBias | DistanceBias | LinearBias


def _twice_as_far(built: Built, x: Tensor, span: PositionRange) -> Tensor:
    """Token t gets the vector of position 2 t."""
    if span.visible is not None:
        return built.own(x, span)  # type: ignore[no-any-return]
    rows = []
    for number in range(span.queries):
        place = 2 * (span.offset + number)
        one = replace(span, queries=1, offset=place, key_start=place, keys=place + 1)
        rows.append(built.own(x[:, number : number + 1], one))
    return torch.cat(rows, 1)


def _half_forgotten(built: Built, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """h' = 0.5 h + z (n - h)"""
    (new,) = built.own(projected, state)
    return (new - 0.5 * state[0],)


def _linear_sum(built: Built, query: Tensor, mapped: Tensor) -> Tensor:
    """v . (W q + U k), without tanh."""
    module = built.module
    queries = query @ module.query.weight.mT
    keys = mapped.repeat_interleave(query.shape[1] // mapped.shape[1], 1)
    hidden = queries[..., :, None, :] + keys[..., None, :, :]
    return (hidden @ module.out.weight.mT)[..., 0]


MUTANTS = (
    *law_mutants(
        "position",
        sinusoidal=[("sinusoidal_of_2t", "sines and cosines of twice the position", overriding("embed", _twice_as_far))],
        alibi=[("alibi_half", "all slopes are halved", overriding("prepare", lambda built, span: 0.5 * built.own(span)))],
        rotary_half=[("rotary_half_slow", "all frequencies are halved", spoilt(angles=lambda angles: 0.5 * angles))],
        rotary_interleaved=[
            ("rotary_interleaved_slow", "all frequencies are halved", spoilt(angles=lambda angles: 0.5 * angles))
        ],
        relative_t5=[
            ("t5_half_buckets", "two buckets share a value", overriding("prepare", lambda built, span: built.own(span) // 2))
        ],
    ),
    *law_mutants("cell", gru=[("gru_half", "h' = 0.5 h + z (n - h)", overriding("step", _half_forgotten))]),
    *law_mutants("score", additive=[("additive_linear", "there is no tanh", overriding("forward", _linear_sum))]),
)
"""Errors that obey the laws of their family."""


def _larger(value: Any) -> Any:
    """1.001 times what a part gives."""
    if isinstance(value, tuple):
        return tuple(_larger(each) for each in value)
    if isinstance(value, LinearBias):
        return LinearBias(1.001 * value.slopes)
    if isinstance(value, (DenseBias, DistanceBias)):
        return replace(value, values=1.001 * value.values)
    return 1.001 * value


def _overridden(*names: str) -> Change:
    def change(subject: PartUnderTest) -> PartUnderTest:
        for name in names:
            subject = overriding(name, lambda built, *arguments: _larger(built.own(*arguments)))(subject)
        return subject

    return change


def _function(subject: PartUnderTest) -> PartUnderTest:
    return made(lambda x, options: _larger(subject.make(x, options)))(subject)


def _forward(subject: PartUnderTest) -> PartUnderTest:
    """The module's output, whatever it is built from."""

    def make(*arguments: Any) -> Any:
        module = subject.make(*arguments)
        own: Callable[..., Any] = module.forward
        object.__setattr__(module, "forward", lambda *given: _larger(own(*given)))
        return module

    return replace(subject, make=make)


METHODS = {"embeddings": "embed", "queries_keys": "rotate", "scores": "bias"}


def larger_outputs(catalogue: Catalogue, slot: str) -> list[LawMutant]:
    """One mutant of every built-in entry of a slot that computes something: all that it gives is 0.1 % too large."""
    found = []
    for name in catalogue.names(slot):
        entry: Any = catalogue.find(slot, name)
        if (slot == "position" and not entry.acts) or (slot == "score" and entry.build is None):
            continue
        if slot == "position":
            change = _overridden(*(METHODS[place] for place in sorted(entry.acts)))
        else:
            change = {"activation": _function, "cell": _overridden("step"), "norm": _forward, "placement": _forward,
                      "score": _forward}[slot]  # fmt: skip
        found.append(LawMutant(f"{name}_larger", slot, name, "all that it gives is 0.1 % too large", change))
    return found
