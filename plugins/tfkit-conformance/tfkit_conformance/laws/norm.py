"""What every norm owes a model: a map of the last axis, token by token, in the dtype of its input, with its own weights."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from tfkit.slots.norm import CLAIMS

from .declared import check_claims, check_parameters, check_reached, check_unwritten
from .example import LawExample
from .law import Law, PartUnderTest, Structure, always, claims
from .norm_claims import LAWS as CLAIMED
from .norm_closed import LAWS as FORMS
from .norm_use import FEW, SHRINKS, draw, draw_many, draw_wide, numbers
from .rounding import derivative_holds, gamma, sensitivity


def _declaration(trial: LawExample) -> None:
    entry, options, width = trial.entry, trial.options, trial.at["width"]
    check_claims(trial, CLAIMS)
    check_parameters(trial, trial.bare(width), entry.parameters(options, width))


def _outputs(trial: LawExample) -> None:
    """Any number of axes before the last one; the same in training and in evaluation; no state between calls."""
    at = trial.at
    module = trial.built(at["width"])
    for shape in (
        (at["width"],),
        (at["tokens"], at["width"]),
        (2, at["tokens"], at["width"]),
        (2, 3, at["tokens"], at["width"]),
    ):
        x = numbers(trial, *shape)
        kept = x.clone()
        first = trial.alike("output", module.train()(x), shape, x.dtype)
        trial.finite("output", first)
        check_unwritten(trial, [kept], [x])
        module(numbers(trial, 3, at["width"]))
        trial.equal("the same call a second time, after another one, gives something else", module(x), first)
        trial.equal("evaluation and training differ", module.eval()(x), first)


def _layouts(trial: LawExample) -> float:
    at = trial.at
    module, x = trial.built(at["width"]), numbers(trial, 2, at["tokens"], at["width"])
    dense = module(x)
    across = module(x.transpose(1, 2).contiguous().transpose(1, 2))
    apart = module(torch.stack((x, x), -1)[..., 0])
    bound = 2 * (_stable(trial, module, x) + trial.unit * dense.double().abs())
    return max(
        trial.within("the output depends on how the input lies in memory", across, dense, bound),
        trial.within("the output depends on the stride of the last axis", apart, dense, bound),
    )


def _stable(trial: LawExample, module: torch.nn.Module, x: Tensor) -> Tensor:
    """Three roundings to the dtype, between them float32 steps over the width: one for the normed vector, one for its scale,
    one for its shift."""
    total = sensitivity(_run(trial, module), [x.double(), *(p.detach().double() for p in module.parameters())])
    return (3 * trial.unit + gamma(trial.at["width"] + 16)) * total + trial.tiny


def _run(trial: LawExample, module: torch.nn.Module) -> Callable[..., Tensor]:
    """The norm as a function of its input and weights, in float64."""
    exact = trial.twin(module, trial.at["width"])
    names = [name for name, _ in exact.named_parameters()]

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(exact, dict(zip(names, weights, strict=True)), (x,))
        return found

    return run


def _tokens(trial: LawExample) -> None:
    """Other tokens and other batch rows get other values: no bit of this token's output changes."""
    at = trial.at
    module, x = trial.built(at["width"]), numbers(trial, 2, at["tokens"], at["width"])
    other = numbers(trial, 2, at["tokens"], at["width"])
    row, token = int(trial.generator.initial_seed() % 2), int(trial.generator.initial_seed() % at["tokens"])
    other[row, token] = x[row, token]
    one, two = module(x)[row, token], module(other)[row, token]
    trial.equal(f"token {token} of batch row {row} depends on other tokens", two, one)


def _gradients(trial: LawExample) -> None:
    at = trial.at
    module = trial.built(at["width"])
    x = numbers(trial, at["tokens"], at["width"]).requires_grad_()
    check_reached(trial, module(x), {"x": x} | {n: p for n, p in module.named_parameters() if p.requires_grad})


def _weights(trial: LawExample) -> None:
    """Every number of every weight matters."""
    at = trial.at
    module, x = trial.built(at["width"]), numbers(trial, at["tokens"], at["width"])
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
            raise trial.broken(f"number {int(still.nonzero()[0])} of `{name}` does not change the output", tensor=name)
        trial.differs(f"`{name}` does not change the output", after, before)


def _slopes_hold(trial: LawExample) -> float:
    at = trial.at
    module = trial.built(at["width"])
    x = trial.normal(at["tokens"], at["width"]).requires_grad_()
    return derivative_holds(trial, lambda: module(x).double(), [x, *(p for p in module.parameters() if p.requires_grad)])


def _dtypes(trial: LawExample) -> float:
    at = trial.at
    module, x = trial.built(at["width"]), numbers(trial, at["tokens"], at["width"])
    weights = [p.detach().double() for p in module.parameters()]
    said = f"the output in {trial.dtype} is farther from its own float64 run than three roundings"
    return trial.within(said, module(x), _run(trial, module)(x.double(), *weights), _stable(trial, module, x))


def _rounds_once(trial: LawExample) -> float:
    at = trial.at
    module, x = trial.built(at["width"]), numbers(trial, at["tokens"], at["width"])
    weights = [p.detach().double() for p in module.parameters()]
    run = _run(trial, module)
    want = run(x.double(), *weights)
    inside = gamma(at["width"] + 16) * sensitivity(run, [x.double(), *weights])
    bound = 1.01 * trial.unit * (want.abs() + inside) + inside + trial.tiny
    return trial.within(f"the output in {trial.dtype} is rounded more than once", module(x), want, bound)


def _extremes(trial: LawExample) -> None:
    """Zero, and numbers near the largest of the dtype: finite values and gradients (of zero)."""
    width = trial.at["width"]
    module = trial.built(width)
    zero = torch.zeros(2, width, dtype=trial.dtype, device=trial.device).requires_grad_()
    output = module(zero)
    trial.finite("the norm of a zero vector", output)
    if output.requires_grad and _steepest(trial, module) < torch.finfo(trial.dtype).max / 4:
        leaves = [zero, *(p for p in module.parameters() if p.requires_grad)]
        for gradient in torch.autograd.grad(output.sum(), leaves, allow_unused=True):
            if gradient is not None:
                trial.finite("a gradient at a zero vector", gradient)
    large = min(1e4, torch.finfo(trial.dtype).max / 8) if trial.dtype == torch.float16 else 1e15
    huge = (trial.normal(4, width, dtype=torch.float64).sign() * large).to(trial.dtype)
    if not claims("identity")(trial.subject, trial.options):
        trial.finite(f"the norm of numbers of size {large:g}", module(huge))


def _steepest(trial: LawExample, module: torch.nn.Module) -> float:
    """The largest slope at a zero vector, in float64: 1 / sqrt(eps) may be more than a half dtype holds."""
    exact = trial.twin(module, trial.at["width"])
    zero = torch.zeros(2, trial.at["width"], dtype=torch.float64, device=trial.device).requires_grad_()
    slopes = [torch.autograd.grad(exact(zero)[0, n], zero)[0].abs().max() for n in range(min(trial.at["width"], 4))]
    return float(max(slopes))


def _draw_apart(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {**draw(subject, options, random), "width": random.choice((8, 12, 16, 33))}


FLAT = ("float32",)
LAWS = (
    Law("declaration", "build gives the declared weights and nothing else", always, draw_wide, _declaration, dtypes=FLAT),
    Law(
        "outputs",
        "(..., M) to (..., M) in the dtype of x; finite; nothing written; no state; training as in evaluation",
        always,
        draw_wide,
        _outputs,
        SHRINKS,
    ),
    Law("layouts", "any strides give the same numbers", always, draw, _layouts, FEW),
    Law("tokens", "R37: a token is normed on its own, bit for bit", always, draw_many, _tokens, SHRINKS | {"tokens": 2}),
    Law("gradients", "a gradient reaches the input and every weight", always, draw, _gradients, FEW),
    Law("weights", "every number of every weight changes the output", always, draw, _weights, FEW, FLAT),
    Law(
        "slopes_hold",
        "R39: gradients are the slopes that differences show, in float64",
        always,
        _draw_apart,
        _slopes_hold,
        {"tokens": 1, "width": 8},
        ("float64",),
    ),
    Law("dtypes", "every dtype is within three roundings of its own float64 run", always, draw, _dtypes, FEW),
    Law("rounds_once", "half dtypes are computed in float32 and rounded once", claims("rounds_once"), draw, _rounds_once, FEW),
    Law("extremes", "zero vectors and numbers of 1e4 and more stay finite", always, draw_wide, _extremes, SHRINKS),
    *CLAIMED,
    *FORMS,
)
