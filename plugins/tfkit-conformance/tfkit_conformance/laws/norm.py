"""Laws of every norm: it maps the last axis of each token, in the dtype of its input."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.plugin.model_parts import BatchwiseNorm, InitContext

from ..attention.bound import gamma
from .declared import check_claims, check_parameters, check_reached, check_unwritten
from .law import SINGLE, Law, LawExample, PartUnderTest, Structure, always, claims
from .rounding import derivative_holds, sensitivity

UNKNOWN_EPS = 1e-3


def _draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {
        "width": random.choice((4, 7, 16, 33, 128)), "tokens": random.choice((1, 2, 4)),
        "power": random.choice((1, 2, 4, 6)), "shift": random.choice((1, 2, 8)),
    }  # fmt: skip


def _spread(example: LawExample) -> Tensor:
    """Vectors of mean 0 and mean square 1 or more, in float64."""
    at = example.at
    x = example.normal(at["tokens"], at["width"], dtype=torch.float64)
    x = x - x.mean(-1, keepdim=True)
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    return 2.0 * x


def _eps(example: LawExample) -> float:
    eps = getattr(example.options, "eps", UNKNOWN_EPS)
    return float(eps) if isinstance(eps, (int, float)) else UNKNOWN_EPS


def _first(example: LawExample) -> nn.Module:
    """The norm with weights as an untrained model has them."""
    width = example.at["width"]
    module = example.built(width)
    entry = example.subject.catalogue.find("init", "xavier")
    for parameter in example.entry.parameters(example.options, width):
        drawn = entry.draw(entry.options(), parameter, InitContext(width, 1, 0))
        with torch.no_grad():
            module.get_parameter(parameter.name).fill_(drawn.centre)
    return module


def _sizes(module: nn.Module, output: Tensor) -> Tensor:
    """The largest number of each row, with those of the weights: what a rounding is a share of."""
    weights = max((float(p.detach().abs().max()) for p in module.parameters()), default=1.0)
    return output.detach().double().abs().amax(-1, keepdim=True) + weights


def _scale(example: LawExample) -> float:
    module, x = example.built(example.at["width"]), _spread(example).to(example.dtype)
    factor = 2.0 ** example.at["power"]
    one, other = module(x), module(x * factor)
    share = _eps(example) / (2 * float(x.double().square().mean(-1).min()))
    bound = (2 * (3 * example.unit + gamma(example.at["width"] + 16, SINGLE)) + share) * _sizes(module, one) + example.tiny
    return example.within(f"the norm of {factor:g} x is not that of x", other, one, bound)


def _shift(example: LawExample) -> float:
    """The sum is exact: numbers are multiples of 1/8, so that no rounding of the input hides or feigns anything."""
    module, at = example.built(example.at["width"]), example.at
    x = (_spread(example) * 8).round() / 8
    moved = x + at["shift"]
    exact = torch.equal(moved.to(example.dtype).double(), moved) and torch.equal(x.to(example.dtype).double(), x)
    if not exact:
        x = x.round()
        moved = x + at["shift"]
    one, other = module(x.to(example.dtype)), module(moved.to(example.dtype))
    deviation = x.var(-1, unbiased=False, keepdim=True).sqrt().clamp(min=0.1)
    grown = (x.abs().amax(-1, keepdim=True) + at["shift"]) / deviation
    bound = (6 * example.unit + 2 * gamma(at["width"] + 16, SINGLE) * (1 + grown) ** 2) * _sizes(module, one) + example.tiny
    return example.within(f"the norm of x + {at['shift']} is not that of x", other, one, bound)


def _mean(example: LawExample) -> float:
    module, x = _first(example), (_spread(example) + example.at["shift"]).to(example.dtype)
    y = module(x).double()
    size = y.abs().amax(-1) * (1 + x.double().abs().amax(-1))
    bound = (2 * example.unit + 2 * gamma(example.at["width"] + 16, SINGLE)) * size + example.tiny
    return example.within("the mean of an output vector is not 0", y.mean(-1), torch.zeros_like(y.mean(-1)), bound)


def _rms(example: LawExample) -> float:
    module, x = _first(example), (_spread(example) * 2.0 ** example.at["power"]).to(example.dtype)
    y = module(x).double()
    share = _eps(example) / (2 * float(x.double().square().mean(-1).min()))
    bound = torch.full_like(y.mean(-1), 1.01 * share + 3 * example.unit + 2 * gamma(example.at["width"] + 16, SINGLE))
    got = y.square().mean(-1).sqrt()
    return example.within("the root mean square of an output vector is not 1", got, torch.ones_like(got), bound)


def _identity(example: LawExample) -> None:
    module, x = example.built(example.at["width"]), _spread(example).to(example.dtype)
    example.equal("y is not x", module(x), x)


SMALLER = {"tokens": 1, "width": 4, "power": 1, "shift": 1}
CLAIMED = (
    Law("scale_invariant", "R36: norm(a x) = norm(x), up to the effect of eps", claims("scale_invariant"), _draw, _scale,
        SMALLER),
    Law("shift_invariant", "R36: norm(x + c) = norm(x)", claims("shift_invariant"), _draw, _shift, SMALLER),
    Law("zero_mean", "output vectors have mean 0, with initial weights", claims("zero_mean"), _draw, _mean, SMALLER),
    Law("unit_rms", "output vectors have root mean square 1, with initial weights", claims("unit_rms"), _draw, _rms, SMALLER),
    Law("identity", "y = x", claims("identity"), _draw, _identity, SMALLER),
)  # fmt: skip


SHRINKS = {"tokens": 1, "width": 2, "scale": 0, "shift": 0}
NARROWER = SHRINKS | {"width": 4}


def draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """Few and short vectors, of various size and mean: some laws need a Jacobian."""
    return {
        "width": random.choice((4, 5, 7, 8, 12, 16, 24, 33)), "tokens": random.choice((1, 2, 3)),
        "scale": random.choice((0, 0, 1, 3, -2)), "shift": random.choice((0, 0, 1, 2)),
    }  # fmt: skip


def draw_many(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """More than one token."""
    return draw_wide(subject, options, random) | {"tokens": random.choice((2, 3, 5, 9))}


def draw_wide(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """As wide as models are."""
    return draw(subject, options, random) | {"width": random.choice((2, 4, 7, 16, 33, 64, 257, 768))}


def numbers(example: LawExample, *shape: int) -> Tensor:
    """2^scale (z + shift) with z normally distributed."""
    drawn = example.normal(*shape, dtype=torch.float64)
    shift, power = float(example.at["shift"]), float(example.at["scale"])
    return ((drawn + shift) * float(2.0**power)).to(example.dtype)


def _declaration(example: LawExample) -> None:
    entry, options, width = example.entry, example.options, example.at["width"]
    check_claims(example)
    module = example.bare(width)
    check_parameters(example, module, entry.parameters(options, width))
    if isinstance(module, BatchwiseNorm) is not entry.over_batch:
        raise example.broken(f"`over_batch` is {entry.over_batch} and its module is a {type(module).__name__}")


def _outputs(example: LawExample) -> None:
    """Any number of axes before the last one; the same in training and in evaluation, unless over the batch; no state between
    calls."""
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
        first = example.alike("output", module.train(not example.entry.over_batch)(x), shape, x.dtype)
        example.finite("output", first)
        check_unwritten(example, [kept], [x])
        module(numbers(example, 3, at["width"]))
        example.equal("a second call, after another one, gives a different result", module(x), first)
        example.equal("training and evaluation differ", module.eval()(x), first)


def _padding(example: LawExample) -> None:
    """In training: other numbers at padding, the same outputs and statistics of the other tokens."""
    at = example.at
    x, results = numbers(example, 3, at["tokens"], at["width"]), []
    real = torch.arange(at["tokens"], device=example.device) < torch.tensor([[at["tokens"]], [1], [0]], device=example.device)
    module = example.built(at["width"])
    before = {name: tensor.clone() for name, tensor in module.named_buffers()}
    for padded in (x, torch.where(real.unsqueeze(-1), x, x + 1.0)):
        module.load_state_dict(before, strict=False)
        results.append([module.train()(padded, real)[real], *(buffer.clone() for buffer in module.buffers())])
    for one, other in zip(*results, strict=True):
        example.equal("the numbers at padding count in training", other, one)


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
        output: Tensor = torch.func.functional_call(exact, dict(zip(names, weights, strict=True)), (x,))
        return output

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
    message = f"the output in {example.dtype} is farther from its own float64 run than three roundings"
    return example.within(message, module(x), _run(example, module)(x.double(), *weights), _stable(example, module, x))


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
    by_itself = not example.entry.over_batch  # a running statistic is not that of these numbers
    if by_itself and not claims("identity")(example.subject, example.options):
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
    Law("outputs", "(..., M) to (..., M) in the dtype of x; finite; inputs unchanged; no state; the same in training, unless "
        "it is over the batch", always, draw_wide, _outputs, SHRINKS),
    Law("padding", "a norm over the batch does not count padding in training, bit for bit",
        lambda subject, options: subject.entry.over_batch, draw_many, _padding, SHRINKS | {"tokens": 2}),
    Law("layouts", "any strides give the same numbers", always, draw, _layouts, NARROWER),
    Law("tokens", "R37: a token is normalised independently of others, bit for bit",
        always, draw_many, _tokens, SHRINKS | {"tokens": 2}),
    Law("gradients", "a gradient reaches the input and every weight", always, draw, _gradients, NARROWER),
    Law("weights", "every number of every weight changes the output", always, draw, _weights, NARROWER, FLAT),
    Law("slopes_hold", "R39: gradients agree with finite differences, in float64", always, _draw_apart, _slopes_hold,
        {"tokens": 1, "width": 8}, ("float64",)),
    Law("dtypes", "every dtype is within three roundings of its own float64 run", always, draw, _dtypes, NARROWER),
    Law("rounds_once", "half dtypes are computed in float32 and rounded once",
        claims("rounds_once"), draw, _rounds_once, NARROWER),
    Law("extremes", "zero vectors and numbers of 1e4 and more stay finite", always, draw_wide, _extremes, SHRINKS),
    *CLAIMED,
)  # fmt: skip
