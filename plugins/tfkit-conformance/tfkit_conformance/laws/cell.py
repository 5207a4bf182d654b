"""Laws of every recurrent cell: state' = step(sum_i project(x_i, i), state), row by row and position by position."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.plugin import CellSite

from .declared import check_parameters, check_reached, check_unwritten
from .law import Law, LawExample, PartUnderTest, Structure, always
from .rounding import derivative_holds, largest_bound

State = tuple[Tensor, ...]
ROUNDINGS = 12
"""Roundings to the dtype in one step: of the products, the gates, the new state."""


def _draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {
        "rows": random.choice((1, 2, 3)), "steps": random.choice((1, 2, 3)), "width": random.choice((1, 3, 4)),
        "second": random.choice((0, 0, 2, 5)), "d_state": random.choice((1, 2, 4, 5)),
    }  # fmt: skip


def _draw_many(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """At least two rows and positions, so that there are others."""
    return {**_draw(subject, options, random), "rows": random.choice((2, 3)), "steps": random.choice((2, 3))}


def _draw_wide(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """So many features that ReLU is not 0 in all of them."""
    return {**_draw_many(subject, options, random), "d_state": random.choice((16, 20))}


def _site(example: LawExample) -> CellSite:
    at = example.at
    return CellSite(tuple(width for width in (at["width"], at["second"]) if width), at["d_state"])


def _inputs(example: LawExample) -> list[Tensor]:
    """x_i (B, L, inputs[i])."""
    return [example.normal(example.at["rows"], example.at["steps"], width) for width in _site(example).inputs]


def _state(example: LawExample) -> State:
    """A state that a model may be in, though not the first one: tensors (B, N) within -1 and 1."""
    shape = (example.at["rows"], example.at["d_state"])
    return tuple(torch.tanh(example.normal(*shape)) for _ in range(example.entry.states))


def _projected(example: LawExample, module: Any, inputs: list[Tensor]) -> Tensor:
    """(B, L, E): the products of all inputs, summed."""
    width = (example.entry.projected or example.entry.gates) * example.at["d_state"]
    products = [
        example.alike(f"project of input {i}", module.project(x, i), (*x.shape[:-1], width)) for i, x in enumerate(inputs)
    ]
    return torch.stack(products).sum(0) if len(products) > 1 else products[0]


def _step(example: LawExample, module: Any, projected: Tensor, state: State) -> State:
    new = module.step(projected, state)
    if not isinstance(new, tuple) or len(new) != example.entry.states:
        kind = f"a tuple of {len(new)}" if isinstance(new, tuple) else type(new).__name__
        raise example.broken(f"step gives {kind}, expected a tuple of {example.entry.states} tensors, the output first")
    for number, tensor in enumerate(new):
        example.alike(f"tensor {number} of the new state", tensor, (projected.shape[0], example.at["d_state"]), state[0].dtype)
    return new


def _outputs_of(example: LawExample, module: Any, inputs: list[Tensor], state: State) -> Tensor:
    """Every tensor of the state after every position: (states, B, L, N)."""
    states = []
    for projected in _projected(example, module, inputs).unbind(1):
        state = _step(example, module, projected, state)
        states.append(torch.stack(state))
    return torch.stack(states, 2)


def _bound(example: LawExample, module: nn.Module, inputs: list[Tensor], state: State) -> float:
    run, weights = _run(example, module)
    terms = sum(x.shape[2] for x in inputs) + example.at["d_state"]
    leaves = [*(tensor.double() for tensor in (*inputs, *state)), *weights]
    return largest_bound(example, run, leaves, ROUNDINGS * example.at["steps"], terms * example.at["steps"])


def _run(example: LawExample, module: nn.Module) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The states as a function of inputs, first state and weights, in float64, and the weights."""
    exact, count = example.twin(module, _site(example)), len(_site(example).inputs)
    names = [name for name, _ in exact.named_parameters()]
    states = example.entry.states

    def run(*leaves: Tensor) -> Tensor:
        inputs, state, weights = leaves[:count], leaves[count : count + states], leaves[count + states :]
        pairs = {f"cell.{name}": weight for name, weight in zip(names, weights, strict=True)}
        return torch.func.functional_call(_Whole(example, exact), pairs, (list(inputs), tuple(state)))  # type: ignore[no-any-return]

    return run, [parameter.detach().double() for parameter in module.parameters()]


class _Whole(nn.Module):
    """A cell over a sequence as one module."""

    def __init__(self, example: LawExample, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.example = cell, example

    def forward(self, inputs: list[Tensor], state: State) -> Tensor:
        return _outputs_of(self.example, self.cell, inputs, state)


def _declaration(example: LawExample) -> None:
    site = _site(example)
    check_parameters(example, example.bare(site), example.entry.parameters(example.options, site))


def _outputs(example: LawExample) -> None:
    module: Any = example.built(_site(example))
    inputs, state = _inputs(example), _state(example)
    kept = [tensor.clone() for tensor in (*inputs, *state)]
    first = _outputs_of(example, module.train(), inputs, state)
    example.alike("the state", first, first.shape, example.dtype)
    example.finite("the state", first)
    check_unwritten(example, kept, [*inputs, *state])
    _outputs_of(example, module, _inputs(example), _state(example))
    example.equal("a second call, after another one, gives other states", _outputs_of(example, module, inputs, state), first)
    example.equal("training and evaluation differ", _outputs_of(example, module.eval(), inputs, state), first)


def _others(example: LawExample) -> None:
    """Padding and later tokens are content of other positions: no bit of what was before changes. Nor do other batch rows."""
    module: Any = example.built(_site(example))
    inputs, state = _inputs(example), _state(example)
    chosen = int(example.generator.initial_seed())
    row, last = chosen % example.at["rows"], chosen % example.at["steps"]
    others, other_state = _inputs(example), _state(example)
    for mine, other in zip(inputs, others, strict=True):
        other[row, : last + 1] = mine[row, : last + 1]
    for mine, other in zip(state, other_state, strict=True):
        other[row] = mine[row]
    one = _outputs_of(example, module, inputs, state)[:, row, : last + 1]
    other = _outputs_of(example, module, others, other_state)[:, row, : last + 1]
    example.equal(f"the state of batch row {row} up to position {last} depends on other rows or later positions", other, one)


def _steps(example: LawExample) -> float:
    """A decoder projects one position at a time; a beam search reorders rows between steps."""
    module = example.built(_site(example))
    inputs, state = _inputs(example), _state(example)
    whole, bound = _outputs_of(example, module, inputs, state), 2 * _bound(example, module, inputs, state)
    turn = torch.randperm(example.at["rows"], generator=example.generator)
    moved = _outputs_of(example, module, [x[turn] for x in inputs], tuple(tensor[turn] for tensor in state))
    states, held = [], state
    for t in range(example.at["steps"]):
        held = tuple(_outputs_of(example, module, [x[:, t : t + 1] for x in inputs], held)[:, :, 0].unbind(0))
        states.append(torch.stack(held))
    return max(
        example.within("rows in another order get other states", moved, whole[:, turn], bound),
        example.within("one position at a time gives other states than all at once", torch.stack(states, 2), whole, bound),
    )


def _by_torch(subject: PartUnderTest, options: Any) -> bool:
    """Whether the module names a function of torch for whole sequences."""
    try:
        with torch.device("meta"):
            return hasattr(subject.make(options, CellSite((2,), 2)), "torch_function")
    except Exception:  # the law `declaration` reports why
        return False


def _sequence(example: LawExample) -> float:
    module: Any = example.built(_site(example))
    inputs, state = _inputs(example), _state(example)
    weights = module.flat_weights()
    first = [tensor.unsqueeze(0) for tensor in state]
    arguments = (
        torch.cat(inputs, 2),
        first if len(first) > 1 else first[0],
        weights,
        len(weights) == 4,
        1,
        0.0,
        False,
        False,
        True,
    )
    got, want = module.torch_function(*arguments)[0], _outputs_of(example, module, inputs, state)[0]
    message = "`torch_function` over the sequence gives other outputs than `step` after `step`"
    return example.within(message, got, want, 2 * _bound(example, module, inputs, state))


def _gradients(example: LawExample) -> None:
    module = example.built(_site(example))
    inputs, state = _inputs(example), _state(example)
    leaves = {f"input {i}": x.requires_grad_() for i, x in enumerate(inputs)}
    leaves |= {f"state {i}": tensor.requires_grad_() for i, tensor in enumerate(state)}
    leaves |= {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    check_reached(example, _outputs_of(example, module, inputs, state)[0], leaves)


def _slopes_hold(example: LawExample) -> float:
    module = example.built(_site(example))
    inputs, state = _inputs(example), _state(example)
    leaves = [tensor.requires_grad_() for tensor in (*inputs, *state)]
    leaves += [weight for weight in module.parameters() if weight.requires_grad]
    return derivative_holds(example, lambda: _outputs_of(example, module, inputs, state), leaves)


def _dtypes(example: LawExample) -> float:
    module = example.built(_site(example))
    inputs, state = _inputs(example), _state(example)
    run, weights = _run(example, module)
    want = run(*(tensor.double() for tensor in (*inputs, *state)), *weights)
    message = f"the state in {example.dtype} is farther from its own float64 run than {ROUNDINGS} roundings a step"
    return example.within(message, _outputs_of(example, module, inputs, state), want, _bound(example, module, inputs, state))


def _zeros(example: LawExample) -> None:
    """The first state, and the embedding of padding: finite states and gradients."""
    module = example.built(_site(example))
    inputs = [torch.zeros_like(x).requires_grad_() for x in _inputs(example)]
    state = tuple(torch.zeros_like(tensor).requires_grad_() for tensor in _state(example))
    output = _outputs_of(example, module, inputs, state)
    example.finite("the state after zeros", output)
    for gradient in torch.autograd.grad(output.sum(), [*inputs, *state], allow_unused=True):
        if gradient is not None:
            example.finite("a gradient at zero", gradient)


SMALLER = {"rows": 1, "steps": 1, "width": 1, "d_state": 1}
MANY = SMALLER | {"rows": 2, "steps": 2}
LAWS = (
    Law("declaration", "build gives the declared weights and nothing else", always, _draw, _declaration, dtypes=("float32",)),
    Law("outputs", "project gives (..., gates N), step `states` tensors (B, N); finite; inputs unchanged; no hidden state",
        always, _draw, _outputs, SMALLER),
    Law("others", "other batch rows and later positions change no bit of a state", always, _draw_many, _others, MANY),
    Law("steps", "positions one at a time, and rows in any order, give the same states", always, _draw_many, _steps, SMALLER),
    Law("sequence", "`torch_function` over a sequence is `step` after `step`", _by_torch, _draw, _sequence, SMALLER),
    Law("gradients", "a gradient reaches every input, state and weight", always, _draw_wide, _gradients, SMALLER),
    Law("slopes_hold", "R39: gradients agree with finite differences, in float64", always, _draw, _slopes_hold, SMALLER,
        ("float64",)),
    Law("dtypes", "every dtype is near its own float64 run", always, _draw, _dtypes, SMALLER),
    Law("zeros", "zero inputs and the zero state give finite states and gradients", always, _draw, _zeros, SMALLER),
)  # fmt: skip
