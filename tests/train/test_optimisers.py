"""Optimisers of the recurrent papers against loops over numbers, and their runs."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

import tfkit
from tfkit.recipe import recipe_of
from tfkit.train.optimiser import optimiser_for, set_rate

SPEC = """{tfkit: 1, name: x, defaults: {d_model: 2, vocab_size: 5}, nodes: {
  tokens: {kind: tokens}, body: {kind: rnn, input: tokens, cell: rnn_tanh, d_state: 2},
  logits: {kind: token_logits, input: body, share: tokens}}, outputs: [logits]}"""
TEXT = "{tfkit: 1, name: x, model: x.yaml, stopping: {max_steps: 9}, optimiser: %s, schedule: {kind: constant, peak: 0.5}}"


def adadelta(weight: float, gradients: list[float], rho: float, eps: float) -> float:
    """Zeiler 2012, algorithm 1, with a rate of 0.5."""
    squares = changes = 0.0
    for gradient in gradients:
        squares = rho * squares + (1 - rho) * gradient**2
        change = sqrt(changes + eps) / sqrt(squares + eps) * gradient
        changes = rho * changes + (1 - rho) * change**2
        weight -= 0.5 * change
    return weight


def sgd(weight: float, gradients: list[float], momentum: float) -> float:
    """Sutskever et al. 2013, equations 1 and 2, with the rate of 0.5 outside of the sum."""
    velocity = 0.0
    for gradient in gradients:
        velocity = momentum * velocity + gradient
        weight -= 0.5 * velocity
    return weight


STEPS = {
    "sgd": lambda weight, gradients: sgd(weight, gradients, 0.0),
    "{kind: sgd, momentum: 0.9}": lambda weight, gradients: sgd(weight, gradients, 0.9),
    "{kind: adadelta, rho: 0.9, eps: 1.0e-3}": lambda weight, gradients: adadelta(weight, gradients, 0.9, 1e-3),
}


@pytest.mark.parametrize("written", STEPS)
def test_steps_are_those_of_the_paper(written):
    model = tfkit.build(tfkit.parse_spec(SPEC), seed=1).double()
    recipe = recipe_of(TEXT % written, "r.yaml")
    optimiser = optimiser_for(recipe, model)
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    gradients = {name: torch.randn(4, *tensor.shape, dtype=torch.float64) for name, tensor in first.items()}
    for step in range(4):
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name][step]
        set_rate(optimiser, recipe, step + 1, 2)
        optimiser.step()
    for name, parameter in model.named_parameters():
        rows = gradients[name].flatten(1).T.tolist()
        for before, row, after in zip(first[name].flatten().tolist(), rows, parameter.flatten().tolist(), strict=True):
            assert after == pytest.approx(STEPS[written](before, row), rel=1e-12)
