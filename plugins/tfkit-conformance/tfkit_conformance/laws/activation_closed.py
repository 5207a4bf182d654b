"""The known activations against their functions, number by number with Python's `math`:

relu          max(0, x)                 relu_squared  max(0, x)^2           identity   x
gelu          x Phi(x), Phi(x) = erfc(-x / sqrt 2) / 2                      tanh
gelu_tanh     x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
quick_gelu    x s(1.702 x)              silu          x s(x)                glu: s(x) = 1 / (1 + exp(-x))
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch

from .example import SINGLE, LawExample
from .law import Law
from .part import PartUnderTest, Structure


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def relu(x: float) -> float:
    return x if x > 0 else 0.0


def gelu(x: float) -> float:
    return x * math.erfc(-x / math.sqrt(2.0)) / 2.0


def gelu_tanh(x: float) -> float:
    return x * sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))


def silu(x: float) -> float:
    return x * sigmoid(x)


FUNCTIONS = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "silu": silu,
    "tanh": math.tanh,
    "relu_squared": lambda x: relu(x) ** 2,
    "identity": lambda x: x,
    "glu": sigmoid,
    "reglu": relu,
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
    "swiglu": silu,
}
"""Every known name, those of gated layers too: the function that the gate goes through."""

GATED = frozenset({"glu", "reglu", "geglu", "geglu_tanh", "swiglu"})


def _known(subject: PartUnderTest, options: Any) -> bool:
    return subject.mathematics in FUNCTIONS


def _draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {"count": 64, "reach": random.choice((1, 3, 6, 12, 30))}


def _values(example: LawExample) -> float:
    if example.entry.gated is not (example.subject.mathematics in GATED):
        raise example.broken(f"`gated` is {example.entry.gated} where `{example.subject.mathematics}` is not")
    at, function = example.at, FUNCTIONS[example.subject.mathematics]
    drawn = (torch.rand(at["count"], generator=example.generator, dtype=torch.float64) * 2 - 1) * at["reach"]
    x = drawn.to(example.dtype).to(example.device)
    want = torch.tensor([function(number) for number in x.double().tolist()], dtype=torch.float64, device=example.device)
    inner = SINGLE if example.unit >= SINGLE else example.unit
    bound = 3 * example.unit * (want.abs() + (x.double() * want).abs() * (example.unit > SINGLE)) + 16 * inner * (
        x.double().abs() + want.abs()
    )
    said = f"the value is not that of `{example.subject.mathematics}`"
    return example.within(said, example.subject.make(x, example.options), want, bound + example.tiny)


LAWS = (
    Law("form", "the published function, at many numbers", _known, _draw, _values, {"count": 1, "reach": 1}),
    Law("form_exact", "the published function in float64", _known, _draw, _values, {"count": 1, "reach": 1}, ("float64",)),
)
