from __future__ import annotations

import math

import pytest
import torch

from tfkit.builtin.activation.entries import ENTRIES
from tfkit.plugin.model_parts import load

BY_NAME = {entry.name: entry for entry in ENTRIES}

TRUTH = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "relu_squared": lambda x: max(0.0, x) ** 2,
    "identity": lambda x: x,
    "glu": lambda x: 1 / (1 + math.exp(-x)),
}
GATES = {"glu": "glu", "reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
TRUTH |= {gated: TRUTH[gate] for gated, gate in GATES.items()}
PEERS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu", "silu": "silu", "relu_squared": "relu2"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_equals_its_formula_element_by_element(entry):
    x = torch.linspace(-6, 6, 49, dtype=torch.float64)
    expected = torch.tensor([TRUTH[entry.name](float(item)) for item in x], dtype=torch.float64)
    torch.testing.assert_close(load(entry.function)(x, entry.options()), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", PEERS)
def test_equals_hugging_face(name):
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 101)
    ours = load(BY_NAME[name].function)(x, BY_NAME[name].options())
    torch.testing.assert_close(ours, ACT2FN[PEERS[name]](x), rtol=1e-6, atol=1e-6)


def test_exactly_the_gated_names_are_gated():
    assert {entry.name for entry in ENTRIES if entry.gated} == set(GATES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_keeps_shape_and_dtype(entry, dtype):
    x = torch.randn(2, 3, 5).to(dtype)
    y = load(entry.function)(x, entry.options())
    assert (y.shape, y.dtype) == (x.shape, dtype)
