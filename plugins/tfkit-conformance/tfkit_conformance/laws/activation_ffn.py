"""Laws of an activation inside a feed-forward layer (`tfkit.plugin.model_parts.FeedForward`):

plain   output(f(input(x)))              gated   output(f(gate(x)) * input(x))
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.bound import gamma
from .example import SINGLE, LawExample
from .law import Law, always, claims
from .part import PartUnderTest, Structure
from .placement_parts import run_of


def _draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {
        "width": random.choice((2, 3, 5, 8)), "inner": random.choice((4, 7, 12, 16)),
        "tokens": random.choice((2, 3, 5, 9)), "batch": random.choice((1, 2)),
    }  # fmt: skip


class _Layer:
    """The layer, its projections and its input."""

    def __init__(self, example: LawExample) -> None:
        at = example.at
        self.input, self.output = (
            _linear(example, *sizes) for sizes in ((at["width"], at["inner"]), (at["inner"], at["width"]))
        )
        self.gate = _linear(example, at["width"], at["inner"]) if example.entry.gated else None
        self.module = example.subject.block(
            self.input, self.gate, self.output, lambda x: example.subject.make(x, example.options), 0.0
        )  # fmt: skip
        self.x = example.normal(at["batch"], at["tokens"], at["width"])

    def __call__(self, x: Tensor) -> Tensor:
        found: Tensor = self.module(x, run_of(x.shape[1]), 0)
        return found


def _linear(example: LawExample, fan_in: int, fan_out: int) -> nn.Linear:
    made = nn.Linear(fan_in, fan_out, device=example.device, dtype=example.dtype)
    with torch.no_grad():
        made.weight.copy_(example.normal(fan_out, fan_in))
        made.bias.copy_(example.normal(fan_out))
    return made


def _tokens(example: LawExample) -> None:
    layer = _Layer(example)
    other = example.normal(*layer.x.shape)
    token = int(example.generator.initial_seed() % example.at["tokens"])
    other[0, token] = layer.x[0, token]
    example.equal(f"token {token} depends on other tokens", layer(other)[0, token], layer(layer.x)[0, token])


def _zero(example: LawExample) -> None:
    layer = _Layer(example)
    with torch.no_grad():
        layer.output.weight.zero_()
        layer.output.bias.zero_()
    found = layer(layer.x)
    example.equal("with an output projection of zeros the layer does not give 0", found, torch.zeros_like(found))


def _equation(example: LawExample) -> float:
    """With an output projection that picks single features, the output is f of the right projection."""
    layer = _Layer(example)
    with torch.no_grad():
        layer.output.weight.zero_()
        layer.output.bias.zero_()
        for feature in range(min(layer.output.weight.shape)):
            layer.output.weight[feature, feature] = 1.0
    seen = min(layer.output.weight.shape)
    found = layer(layer.x)[..., :seen]
    x = layer.x.double()
    first = x @ layer.input.weight.double().T + layer.input.bias.double()
    through = first if layer.gate is None else x @ layer.gate.weight.double().T + layer.gate.bias.double()
    leaf = through.detach().requires_grad_()
    value = example.subject.make(leaf, example.options)
    slope = torch.autograd.grad(value.sum(), leaf)[0]
    value = value.detach()
    factor = torch.ones_like(value) if layer.gate is None else first.detach()
    size = (value.abs() + 1 + (slope.abs() + 1) * _reach(x, layer.gate or layer.input)) * (
        factor.abs() + _reach(x, layer.input)
    )
    bound = (8 * example.unit + gamma(example.at["width"] + 32, SINGLE)) * size + example.tiny
    equation = "output(f(input(x)))" if layer.gate is None else "output(f(gate(x)) * input(x))"
    return example.within(f"the layer is not {equation}", found, (value * factor)[..., :seen], bound[..., :seen])


def _reach(x: Tensor, linear: nn.Linear) -> Tensor:
    """The size of what a projection adds up."""
    found: Tensor = (x.abs() @ linear.weight.double().abs().T + linear.bias.double().abs()).detach()
    return found


def _shut(example: LawExample) -> None:
    """A gate that is far below 0 lets nothing through, where the function closes."""
    if not example.entry.gated or not claims("closes")(example.subject, example.options):
        return
    layer = _Layer(example)
    assert layer.gate is not None
    with torch.no_grad():
        layer.gate.weight.zero_()
        layer.gate.bias.fill_(-1000.0)
        layer.output.bias.zero_()
    found = layer(layer.x)
    example.within("a gate at -1000 does not give 0", found, torch.zeros_like(found), 2.0**-20)


SMALLER = {"tokens": 2, "batch": 1, "width": 1, "inner": 1}
LAWS = (
    Law("ffn_tokens", "R37: a feed-forward layer computes every token independently, bit for bit",
        always, _draw, _tokens, SMALLER),
    Law("ffn_zero", "R37: an output projection of zeros gives 0", always, _draw, _zero, SMALLER),
    Law("ffn_equation", "output(f(input(x))), or output(f(gate(x)) * input(x)) where gated", always, _draw, _equation,
        SMALLER | {"tokens": 1}),
    Law("ffn_gate", "R37: a gate at minus infinity gives 0 if the activation goes to 0 there", always, _draw, _shut,
        SMALLER | {"tokens": 1}),
)  # fmt: skip
