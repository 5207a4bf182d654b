"""Mutants of recurrent cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tfkit_conformance.laws.law import PartUnderTest

from .mutant import Built, Change, declares, law_mutants, overriding, patched

State = tuple[Tensor, ...]


def _step(rule: Callable[[Built, Tensor, State], Any]) -> Change:
    """The new state is `rule(built, projected, state)`."""
    return overriding("step", rule)


def _project(rule: Callable[[Built, Tensor, int], Tensor]) -> Change:
    """The product of an input is `rule(built, x, index)`."""
    return overriding("project", rule)


def _held(built: Built, projected: Tensor, state: State) -> State:
    """The module keeps the last state itself."""
    kept = built.module.__dict__
    old = kept.get("held", torch.zeros_like(state[0]))
    new = built.own(projected, (old if old.shape == state[0].shape else state[0], *state[1:]))
    kept["held"] = new[0].detach()
    return new  # type: ignore[no-any-return]


def _in_place(built: Built, projected: Tensor, state: State) -> State:
    new = built.own(projected, state)
    state[0].detach().copy_(new[0].detach())
    return new  # type: ignore[no-any-return]


def _previous(built: Built, x: Tensor, index: int) -> Tensor:
    """A convolution over two positions, where there are several."""
    before = torch.cat([x[:, :1], x[:, :-1]], 1) if x.dim() == 3 else x
    return built.own((x + before) / 2, index)


def _next(built: Built, x: Tensor, index: int) -> Tensor:
    after = torch.cat([x[:, 1:], x[:, -1:]], 1) if x.dim() == 3 else x
    return built.own((x + after) / 2, index)


def _by_position(built: Built, x: Tensor, index: int) -> Tensor:
    return built.own(x * torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None] if x.dim() == 3 else x, index)


def _rounded(built: Built, projected: Tensor, state: State) -> State:
    new = built.own(projected, state)
    return tuple(tensor.bfloat16().float() if tensor.dtype == torch.float32 else tensor for tensor in new)


def _normed(built: Built, projected: Tensor, state: State) -> State:
    return tuple(tensor / tensor.norm(dim=1, keepdim=True) for tensor in built.own(projected, state))


def _swapped_biases(module: nn.Module, options: Any, site: Any) -> None:
    own = module.flat_weights
    object.__setattr__(module, "flat_weights", lambda: [own()[0], own()[1].flip(0), *own()[2:]])


def _missing_weight(subject: PartUnderTest) -> PartUnderTest:
    own = subject.entry.parameters
    return replace(subject, entry=replace(subject.entry, parameters=lambda options, site: own(options, site)[1:]))


MUTANTS = law_mutants(
    "cell",
    gru=(
        ("gru_previous", "an input is mixed with the one before", _project(_previous)),
        ("gru_next", "an input is mixed with the next one", _project(_next)),
        ("gru_batch_mean", "the state is centred over the batch",
         _step(lambda built, p, s: built.own(p, (s[0] - s[0].mean(0),)))),
        ("gru_held", "the module keeps the state of the last call", _step(_held)),
        ("gru_in_place", "the old state is overwritten", _step(_in_place)),
        ("gru_first_row", "the second row gets the state of the first",
         _step(lambda built, p, s: built.own(p, (s[0][:1].expand_as(s[0]),)))),
        ("gru_position_scale", "inputs are scaled by their position", _project(_by_position)),
        ("gru_second_input", "the second input gets no gradient",
         _project(lambda built, x, i: built.own(x.detach() if i else x, i))),
        ("gru_training", "the state is scaled in training",
         _step(lambda built, p, s: tuple((1.5 if built.module.training else 1.0) * t for t in built.own(p, s)))),
        ("gru_weight", "the entry leaves out a weight", _missing_weight),
        ("gru_gates", "the entry says two gates", declares(gates=2)),
    ),
    lstm=(
        ("lstm_no_memory", "the memory cell is not read", _step(lambda built, p, s: built.own(p, (s[0], 0 * s[1])))),
        ("lstm_detached", "the gradient stops at the old output",
         _step(lambda built, p, s: built.own(p, (s[0].detach(), s[1])))),
        ("lstm_half_slope", "half of the gradient of the projected input is lost",
         _step(lambda built, p, s: built.own(0.5 * p + 0.5 * p.detach(), s))),
        ("lstm_list", "the state is a list", _step(lambda built, p, s: list(built.own(p, s)))),
        ("lstm_output_alone", "the memory cell is not returned", _step(lambda built, p, s: built.own(p, s)[:1])),
        ("lstm_states", "the entry says one tensor", declares(states=1)),
        ("lstm_flat_weights", "the whole sequence uses the state's product in another order", patched(_swapped_biases)),
    ),
    rnn_tanh=(
        ("rnn_rounded", "a state in float32 is rounded to bfloat16", _step(_rounded)),
        ("rnn_float32", "the state of half dtypes is float32",
         _step(lambda built, p, s: tuple(tensor.float() for tensor in built.own(p, s)))),
        ("rnn_normed", "the state is divided by its norm, which may be 0", _step(_normed), {"bias": False}),
        ("rnn_unstable", "the state of row 0 takes part in all", _step(
            lambda built, p, s: tuple(tensor + 0.125 * tensor[:1] for tensor in built.own(p, s)))),
    ),
)  # fmt: skip
