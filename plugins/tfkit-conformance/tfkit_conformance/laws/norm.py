"""Laws of every norm: it maps the last axis of each token, in the dtype of its input."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from ..attention.bound import gamma
from .declared import check_claims, check_parameters, check_reached, check_unwritten
from .example import SINGLE, LawExample
from .law import Law, always, claims
from .norm_claims import LAWS as CLAIMED
from .norm_use import FEW, SHRINKS, draw, draw_many, draw_wide, numbers
from .part import PartUnderTest, Structure
from .rounding import derivative_holds, sensitivity


def _declaration(example: LawExample) -> None:
    entry, options, width = example.entry, example.options, example.at["width"]
    check_claims(example)
    check_parameters(example, example.bare(width), entry.parameters(options, width))


def _outputs(example: LawExample) -> None:
    """Any number of axes before the last one; the same in training and in evaluation; no state between calls."""
    at = example.at
    module = example.built(at["width"])
    for shape in (
        (at["width"],),
        (at["tokens"], at["width"]),
        (2, at["tokens"], at["width"]),
        (2, 3, at["tokens"], at["width"]),
    ):
        x = numbers(example, *shape)
        kept = x.clone()
        first = example.alike("output", module.train()(x), shape, x.dtype)
        example.finite("output", first)
        check_unwritten(example, [kept], [x])
        module(numbers(example, 3, at["width"]))
        example.equal("a second call, after another one, gives a different result", module(x), first)
        example.equal("training and evaluation differ", module.eval()(x), first)


def _layouts(example: LawExample) -> float:
    at = example.at
    module, x = example.built(at["width"]), numbers(example, 2, at["tokens"], at["width"])
    dense = module(x)
    across = module(x.transpose(1, 2).contiguous().transpose(1, 2))
    apart = module(torch.stack((x, x), -1)[..., 0])
    bound = 2 * (_stable(example, module, x) + example.unit * dense.double().abs())
    return max(
        example.within("the output depends on how the input lies in memory", across, dense, bound),
        example.within("the output depends on the stride of the last axis", apart, dense, bound),
    )


def _stable(example: LawExample, module: torch.nn.Module, x: Tensor) -> Tensor:
    """Three roundings to the dtype, between them float32 steps over the width: one for the normed vector, one for its scale,
    one for its shift."""
    total = sensitivity(_run(example, module), [x.double(), *(p.detach().double() for p in module.parameters())])
    return (3 * example.unit + gamma(example.at["width"] + 16, SINGLE)) * total + example.tiny


def _run(example: LawExample, module: torch.nn.Module) -> Callable[..., Tensor]:
    """The norm as a function of its input and weights, in float64."""
    exact = example.twin(module, example.at["width"])
    names = [name for name, _ in exact.named_parameters()]

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(exact, dict(zip(names, weights, strict=True)), (x,))
        return found

    return run


def _tokens(example: LawExample) -> None:
    """Other tokens and other batch rows get other values: no bit of this token's output changes."""
    at = example.at
    module, x = example.built(at["width"]), numbers(example, 2, at["tokens"], at["width"])
    other = numbers(example, 2, at["tokens"], at["width"])
    row, token = int(example.generator.initial_seed() % 2), int(example.generator.initial_seed() % at["tokens"])
    other[row, token] = x[row, token]
    one, two = module(x)[row, token], module(other)[row, token]
    example.equal(f"token {token} of batch row {row} depends on other tokens", two, one)


def _gradients(example: LawExample) -> None:
    at = example.at
    module = example.built(at["width"])
    x = numbers(example, at["tokens"], at["width"]).requires_grad_()
    check_reached(example, module(x), {"x": x} | {n: p for n, p in module.named_parameters() if p.requires_grad})


def _weights(example: LawExample) -> None:
    """Every number of every weight matters."""
    at = example.at
    module, x = example.built(at["width"]), numbers(example, at["tokens"], at["width"])
    before = module(x)
    for name, weight in module.named_parameters():
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.add_(1.0)
        after = module(x)
        with torch.no_grad():
            weight.copy_(kept)
        still = (after == before).all(0)
        if weight.shape == (at["width"],) and bool(still.any()):
            raise example.broken(f"number {int(still.nonzero()[0])} of `{name}` does not change the output", tensor=name)
        example.differs(f"`{name}` does not change the output", after, before)


def _slopes_hold(example: LawExample) -> float:
    at = example.at
    module = example.built(at["width"])
    x = example.normal(at["tokens"], at["width"]).requires_grad_()
    return derivative_holds(example, lambda: module(x).double(), [x, *(p for p in module.parameters() if p.requires_grad)])


def _dtypes(example: LawExample) -> float:
    at = example.at
    module, x = example.built(at["width"]), numbers(example, at["tokens"], at["width"])
    weights = [p.detach().double() for p in module.parameters()]
    said = f"the output in {example.dtype} is farther from its own float64 run than three roundings"
    return example.within(said, module(x), _run(example, module)(x.double(), *weights), _stable(example, module, x))


def _rounds_once(example: LawExample) -> float:
    at = example.at
    module, x = example.built(at["width"]), numbers(example, at["tokens"], at["width"])
    weights = [p.detach().double() for p in module.parameters()]
    run = _run(example, module)
    want = run(x.double(), *weights)
    inside = gamma(at["width"] + 16, SINGLE) * sensitivity(run, [x.double(), *weights])
    bound = 1.01 * example.unit * (want.abs() + inside) + inside + example.tiny
    return example.within(f"the output in {example.dtype} is rounded more than once", module(x), want, bound)


def _extremes(example: LawExample) -> None:
    """Zero, and numbers near the largest of the dtype: finite values and gradients (of zero)."""
    width = example.at["width"]
    module = example.built(width)
    zero = torch.zeros(2, width, dtype=example.dtype, device=example.device).requires_grad_()
    output = module(zero)
    example.finite("the norm of a zero vector", output)
    if output.requires_grad and _steepest(example, module) < torch.finfo(example.dtype).max / 4:
        leaves = [zero, *(p for p in module.parameters() if p.requires_grad)]
        for gradient in torch.autograd.grad(output.sum(), leaves, allow_unused=True):
            if gradient is not None:
                example.finite("a gradient at a zero vector", gradient)
    large = min(1e4, torch.finfo(example.dtype).max / 8) if example.dtype == torch.float16 else 1e15
    huge = (example.normal(4, width, dtype=torch.float64).sign() * large).to(example.dtype)
    if not claims("identity")(example.subject, example.options):
        example.finite(f"the norm of numbers of size {large:g}", module(huge))


def _steepest(example: LawExample, module: torch.nn.Module) -> float:
    """The largest slope at a zero vector, in float64: 1 / sqrt(eps) may be more than a half dtype holds."""
    exact = example.twin(module, example.at["width"])
    zero = torch.zeros(2, example.at["width"], dtype=torch.float64, device=example.device).requires_grad_()
    slopes = [torch.autograd.grad(exact(zero)[0, n], zero)[0].abs().max() for n in range(min(example.at["width"], 4))]
    return float(max(slopes))


def _draw_apart(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {**draw(subject, options, random), "width": random.choice((8, 12, 16, 33))}


FLAT = ("float32",)
LAWS = (
    Law("declaration", "build gives the declared weights and nothing else", always, draw_wide, _declaration, dtypes=FLAT),
    Law("outputs", "(..., M) to (..., M) in the dtype of x; finite; inputs unchanged; no state; the same in training",
        always, draw_wide, _outputs, SHRINKS),
    Law("layouts", "any strides give the same numbers", always, draw, _layouts, FEW),
    Law("tokens", "R37: a token is normalised independently of others, bit for bit",
        always, draw_many, _tokens, SHRINKS | {"tokens": 2}),
    Law("gradients", "a gradient reaches the input and every weight", always, draw, _gradients, FEW),
    Law("weights", "every number of every weight changes the output", always, draw, _weights, FEW, FLAT),
    Law("slopes_hold", "R39: gradients agree with finite differences, in float64", always, _draw_apart, _slopes_hold,
        {"tokens": 1, "width": 8}, ("float64",)),
    Law("dtypes", "every dtype is within three roundings of its own float64 run", always, draw, _dtypes, FEW),
    Law("rounds_once", "half dtypes are computed in float32 and rounded once", claims("rounds_once"), draw, _rounds_once, FEW),
    Law("extremes", "zero vectors and numbers of 1e4 and more stay finite", always, draw_wide, _extremes, SHRINKS),
    *CLAIMED,
)  # fmt: skip
