"""Laws of every activation: elementwise, finite, in every dtype, with the properties that it claims."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.bound import gamma
from .declared import check_claims, check_unwritten
from .law import SINGLE, Law, LawExample, PartUnderTest, Structure, always, claims
from .placement_parts import run_of
from .rounding import DIFFERENCE_STEP


def _ffn_draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
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
        output: Tensor = self.module(x, run_of(x.shape[1]), 0)
        return output


def _linear(example: LawExample, fan_in: int, fan_out: int) -> nn.Linear:
    linear = nn.Linear(fan_in, fan_out, device=example.device, dtype=example.dtype)
    with torch.no_grad():
        linear.weight.copy_(example.normal(fan_out, fan_in))
        linear.bias.copy_(example.normal(fan_out))
    return linear


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
    output = layer(layer.x)
    example.equal("with an output projection of zeros the layer does not give 0", output, torch.zeros_like(output))


def _equation(example: LawExample) -> float:
    """With an output projection that picks single features, the output is f of the right projection."""
    layer = _Layer(example)
    with torch.no_grad():
        layer.output.weight.zero_()
        layer.output.bias.zero_()
        for feature in range(min(layer.output.weight.shape)):
            layer.output.weight[feature, feature] = 1.0
    seen = min(layer.output.weight.shape)
    output = layer(layer.x)[..., :seen]
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
    return example.within(f"the layer is not {equation}", output, (value * factor)[..., :seen], bound[..., :seen])


def _reach(x: Tensor, linear: nn.Linear) -> Tensor:
    """The size of what a projection adds up."""
    size: Tensor = (x.abs() @ linear.weight.double().abs().T + linear.bias.double().abs()).detach()
    return size


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
    output = layer(layer.x)
    example.within("a gate at -1000 does not give 0", output, torch.zeros_like(output), 2.0**-20)


FFN_SMALLER = {"tokens": 2, "batch": 1, "width": 1, "inner": 1}
FEED_FORWARD = (
    Law("ffn_tokens", "R37: a feed-forward layer computes every token independently, bit for bit",
        always, _ffn_draw, _tokens, FFN_SMALLER),
    Law("ffn_zero", "R37: an output projection of zeros gives 0", always, _ffn_draw, _zero, FFN_SMALLER),
    Law("ffn_equation", "output(f(input(x))), or output(f(gate(x)) * input(x)) where gated", always, _ffn_draw, _equation,
        FFN_SMALLER | {"tokens": 1}),
    Law("ffn_gate", "R37: a gate at minus infinity gives 0 if the activation goes to 0 there", always, _ffn_draw, _shut,
        FFN_SMALLER | {"tokens": 1}),
)  # fmt: skip


SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 130)


def _draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {"count": random.choice(SIZES), "scale": random.choice((0, 0, 1, 2, 3, -6))}


def _numbers(example: LawExample, *shape: int) -> Tensor:
    power = float(example.at["scale"])
    return (example.normal(*shape, dtype=torch.float64) * float(2.0**power)).to(example.dtype)


def _apply(example: LawExample, x: Tensor) -> Tensor:
    return example.alike("output", example.subject.make(x, example.options), x.shape, x.dtype)


def _outputs(example: LawExample) -> None:
    count = example.at["count"]
    for shape in ((count,), (2, count), (2, 3, count)):
        x = _numbers(example, *shape)
        kept = x.clone()
        first = _apply(example, x)
        example.finite("output", first)
        check_unwritten(example, [kept], [x])
        _apply(example, _numbers(example, 5))
        example.equal("a second call, after another one, gives a different result", _apply(example, kept), first)


def _slope(example: LawExample, x: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and f'(x) in float64."""
    leaf = x.detach().double().requires_grad_()
    output = example.subject.make(leaf, example.options)
    if not output.requires_grad:
        raise example.broken("the output carries no gradient")
    return output.detach(), torch.autograd.grad(output.sum(), leaf)[0]


def _size(x: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """What one rounding is a share of: the value, the argument through the slope, and the argument itself, for functions that
    take a small difference of large numbers (1 + erf) before they multiply."""
    return value.abs() + (x.double() * slope).abs() + x.double().abs().clamp(max=8.0)


def _elementwise(example: LawExample) -> float:
    """A number's neighbours change no bit of its value; its place may change the way it is computed, but not by more than
    roundings."""
    count = max(2, example.at["count"])
    x = _numbers(example, 2, count)
    one = _apply(example, x)
    other = _numbers(example, 2, count)
    place = int(example.generator.initial_seed() % count)
    other[0, place] = x[0, place]
    example.equal("the value at one place depends on the elements at others", _apply(example, other)[0, place], one[0, place])
    turn = torch.randperm(count, generator=example.generator)
    bound = 2 * (3 * example.unit + 16 * SINGLE) * _size(x, *_slope(example, x))[:, turn] + example.tiny
    message = "the value of an element depends on its place"
    return max(
        example.within(message, _apply(example, x[:, turn]), one[:, turn], bound),
        example.within(message, _apply(example, x.t()).t()[:, turn], one[:, turn], bound),
    )


def _dtypes(example: LawExample) -> float:
    x = _numbers(example, 3, example.at["count"])
    value, slope = _slope(example, x)
    bound = (3 * example.unit + 16 * SINGLE) * _size(x, value, slope) + example.tiny
    message = f"the value in {example.dtype} is farther from its own float64 run than three roundings"
    return example.within(message, _apply(example, x), value, bound)


def _rounds_once(example: LawExample) -> float:
    x = _numbers(example, 3, example.at["count"])
    value, slope = _slope(example, x)
    inside = 16 * SINGLE * _size(x, value, slope)
    bound = 1.01 * example.unit * (value.abs() + inside) + inside + example.tiny
    return example.within(f"the value in {example.dtype} is rounded more than once", _apply(example, x), value, bound)


def _slopes_hold(example: LawExample) -> float:
    x = _numbers(example, example.at["count"])
    value, slope = _slope(example, x)
    with torch.no_grad():
        ahead, behind = (example.subject.make(x + step, example.options) for step in (DIFFERENCE_STEP, -DIFFERENCE_STEP))
    right, left = (ahead - value) / DIFFERENCE_STEP, (value - behind) / DIFFERENCE_STEP
    bound = (right - left).abs() + 4 * SINGLE / DIFFERENCE_STEP * (value.abs() + x.abs() + 1)
    return example.within("the gradient does not agree with finite differences", slope, (right + left) / 2, bound, "gradient")


def _extremes(example: LawExample) -> None:
    """0, and numbers up to the largest of the dtype: no NaN, in values and in slopes; infinite only where the dtype ends."""
    largest = torch.finfo(example.dtype).max
    x = torch.tensor([0.0, -0.0, 1.0, 30.0, 1e4, largest / 4, largest], dtype=example.dtype, device=example.device)
    for sign in (1, -1):
        leaf = (sign * x).requires_grad_()
        output = _apply(example, leaf)
        if bool(output.isnan().any()):
            place = int(output.isnan().nonzero()[0])
            raise example.broken(f"f({float(leaf[place]):g}) is NaN in {example.dtype}", tensor="output", index=(place,))
        if not output.requires_grad:
            raise example.broken("the output carries no gradient")
        gradient = torch.autograd.grad(output[:4].sum(), leaf)[0][:4]
        example.finite("a slope between -30 and 30", gradient)
        modest = output.detach()[:4]
        example.finite("a value between -30 and 30", modest)


def _closes(example: LawExample) -> None:
    """f(-x) for growing x: at most as large as the last bits of x, and no NaN."""
    x = torch.tensor([-40.0, -100.0, -1000.0, -30000.0], dtype=example.dtype, device=example.device)
    y = _apply(example, x)
    example.within("it does not go to 0 as x goes to minus infinity", y, torch.zeros_like(y), 16 * SINGLE * 40)


def _monotone(example: LawExample) -> None:
    x = torch.linspace(-12, 12, 2001, dtype=torch.float64, device=example.device).to(example.dtype)
    y = _apply(example, x).double()
    falls = y[:-1] - y[1:] > 2 * (example.unit + 16 * SINGLE) * y[1:].abs()
    if bool(falls.any()):
        place = int(falls.nonzero()[0])
        (left, right), (high, low) = x[place : place + 2].tolist(), y[place : place + 2].tolist()
        raise example.broken(f"f decreases from f({left:g}) = {high:g} to f({right:g}) = {low:g}")


SMALLER = {"count": 1, "scale": 0}
FLAT = ("float32",)
LAWS = (
    Law("declaration", "`claims` and `same_as` name known properties and parts", always, _draw, check_claims, dtypes=FLAT),
    Law("outputs", "same shape and dtype; finite; inputs unchanged; no state between calls", always, _draw, _outputs, SMALLER),
    Law("elementwise", "each output element depends on the input element at its place only", always, _draw, _elementwise,
        SMALLER),
    Law("dtypes", "every dtype is within three roundings of its own float64 run", always, _draw, _dtypes, SMALLER),
    Law("rounds_once", "half dtypes are computed in float32 and rounded once", claims("rounds_once"), _draw, _rounds_once,
        SMALLER),
    Law("slopes_hold", "R39: gradients agree with finite differences, in float64", always, _draw, _slopes_hold, SMALLER,
        ("float64",)),
    Law("extremes", "no NaN up to the largest numbers of the dtype, finite slopes", always, _draw, _extremes),
    Law("closes", "f(x) goes to 0 as x goes to minus infinity", claims("closes"), _draw, _closes),
    Law("monotone", "f is monotone", claims("monotone"), _draw, _monotone),
    *FEED_FORWARD,
)  # fmt: skip
