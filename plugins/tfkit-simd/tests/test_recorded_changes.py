"""Recorded steps follow every change of the model: of weights, modules, attributes, hooks and backends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tfkit
from tfkit.generate import RecordedSteps, recorded_steps

from .test_steps import built, check, inputs_of, pytestmark

__all__ = ["pytestmark"]


def test_steps_are_recorded_anew_once_a_weight_changes() -> None:
    model = built()
    graphs = recorded_steps(model)
    assert graphs is not None
    check(model, graphs)
    with torch.no_grad():
        model.nodes["decoder"].layers[0].branches.ffn.input.weight.mul_(-1.0)
    check(model, graphs)
    model.nodes["decoder"].layers[1].branches.ffn.input.weight.data.mul_(-1.0)  # past the counter of versions
    check(model, graphs)
    model.nodes["decoder"].layers[0].branches.ffn.output.bias = torch.nn.Parameter(
        torch.randn(model.nodes["decoder"].layers[0].branches.ffn.output.bias.shape)
    )
    check(model, graphs)


def other_eps(model: tfkit.Model) -> None:
    model.nodes["decoder"].layers[0].norms["self_attention"].eps = 50.0


def other_activation(model: tfkit.Model) -> None:
    model.nodes["decoder"].layers[1].branches.ffn.activate = lambda x: 3.0 * torch.tanh(x)


def other_class(model: tfkit.Model) -> None:
    ffn = model.nodes["decoder"].layers[1].branches.ffn

    class Doubled(type(ffn)):
        def forward(self, *inputs):
            return -2.0 * super().forward(*inputs)

    ffn.__class__ = Doubled


def no_norm(model: tfkit.Model) -> None:
    model.nodes["decoder"].layers[0].norms["ffn"] = torch.nn.Identity()


def one_backend(model: tfkit.Model) -> None:
    model.set_backend("eager")


@pytest.mark.parametrize("change", [other_eps, other_activation, other_class, no_norm, one_backend])
def test_they_are_recorded_anew_once_a_module_changes(change: Callable[[tfkit.Model], None]) -> None:
    model = built()
    graphs, inputs = recorded_steps(model), inputs_of(model, 2)
    assert graphs is not None

    def log_probabilities(steps: RecordedSteps | None) -> torch.Tensor:
        return tfkit.greedy(model, max_new_tokens=6, scores=True, graphs=steps, **inputs).log_probabilities

    before = log_probabilities(graphs)
    change(model)
    ordinary = log_probabilities(None)
    torch.testing.assert_close(log_probabilities(graphs), ordinary, rtol=1e-4, atol=1e-4)
    assert len(graphs.steps) == (change is not one_backend)
    assert change is one_backend or not torch.allclose(before, ordinary, rtol=1e-3, atol=1e-3)


def test_a_search_does_not_make_another_one_record_anew() -> None:
    model = built()
    graphs, inputs = recorded_steps(model), inputs_of(model, 2)
    assert graphs is not None
    tfkit.greedy(model, max_new_tokens=6, graphs=graphs, **inputs)
    [first] = graphs.steps.values()
    tfkit.beam_search(model, beams=2, max_new_tokens=6, **inputs)
    model.train().eval()
    tfkit.greedy(model, max_new_tokens=6, graphs=graphs, **inputs)
    assert next(iter(graphs.steps.values())) is first


def test_a_function_in_place_of_forward_is_called_in_every_step() -> None:
    """As `accelerate` puts one into each module."""
    model, calls = built(), []
    graphs, inputs = recorded_steps(model), inputs_of(model, 2)
    tfkit.greedy(model, max_new_tokens=6, graphs=graphs, **inputs)
    ffn = model.nodes["decoder"].layers[0].branches.ffn
    forward = ffn.forward

    def counted(*arguments: torch.Tensor) -> torch.Tensor:
        calls.append(arguments)
        return forward(*arguments)

    ffn.forward = counted
    tfkit.greedy(model, max_new_tokens=6, graphs=graphs, **inputs)
    assert len(calls) >= 6


def test_a_hook_sees_every_step() -> None:
    model, seen = built(), []
    graphs = recorded_steps(model)
    inputs = inputs_of(model, 2)
    tfkit.greedy(model, max_new_tokens=6, graphs=graphs, **inputs)
    handle = model.nodes["decoder"].layers[0].register_forward_hook(lambda *call: seen.append(call))
    tfkit.greedy(model, max_new_tokens=6, graphs=graphs, **inputs)
    assert len(seen) >= 6
    handle.remove()


def test_a_backend_that_was_asked_for_is_used() -> None:
    model = built()
    model.set_backend("eager")
    graphs = recorded_steps(model)
    assert graphs is not None
    check(model, graphs)
    assert not graphs.steps
    assert {str(reason) for reason in graphs.held.refused.values()} == {"another backend than `simd` was asked for: eager"}
    model.set_backend("simd")
    graphs = recorded_steps(model)
    assert graphs is not None
    check(model, graphs)
    assert len(graphs.steps) == 2
