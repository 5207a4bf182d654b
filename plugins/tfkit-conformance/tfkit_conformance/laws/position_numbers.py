"""Laws of every position scheme: gradients, rounding, and what its bias reads."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from ..attention.bound import gamma
from .declared import check_reached
from .law import SINGLE, Law, LawExample, PartUnderTest, Structure, claims
from .position_use import (
    SHRINKS,
    acts_somewhere,
    bias_rounding,
    changed,
    draw,
    effect,
    inputs_of,
    module_of,
    reach,
    relative_bound,
    row_size,
    scores,
    site_of,
    span_of,
)
from .rounding import derivative_holds, sensitivity


def _gradients(example: LawExample) -> None:
    length = example.at["length"]
    module, tensors = module_of(example), inputs_of(example, length)
    leaves = tuple(tensor.requires_grad_() for tensor in tensors)
    done = effect(example, module, tensors, span_of(example, length))
    weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
    x, query, key = leaves
    inputs = {"embeddings": {"x": x}, "query": {"query": query}, "key": {"key": key}}
    inputs["bias"] = {"query": query} if example.entry.reads_query else {}
    for name, output in done.items():
        if inputs[name] or output.requires_grad:
            trained = weights if len(example.entry.acts) == 1 and name != "key" else {}
            check_reached(example, output, inputs[name] | trained)
    if weights and not any(output.requires_grad for output in done.values()):
        raise example.broken(f"no gradient reaches {', '.join(weights)}")


def _slopes_hold(example: LawExample) -> float:
    length = example.at["length"]
    module, tensors = module_of(example), inputs_of(example, length)
    leaves = [*(tensor.requires_grad_() for tensor in tensors), *(p for p in module.parameters() if p.requires_grad)]

    def outcome() -> Tensor:
        outputs = effect(example, module, tensors, span_of(example, length)).values()
        return torch.cat([tensor.double().flatten() for tensor in outputs])

    with torch.enable_grad():
        output = outcome()
    if not output.requires_grad:
        return 0.0
    reached = torch.autograd.grad(output.sum(), leaves, allow_unused=True)
    return derivative_holds(
        example, outcome, [leaf for leaf, gradient in zip(leaves, reached, strict=True) if gradient is not None]
    )


def _dtypes(example: LawExample) -> float:
    """Four roundings; between them float32 sums over the features, and angles whose rounding grows with the position."""
    at, length, worst = example.at, example.at["length"], 0.0
    site = site_of(example.subject, at)
    module = example.built(site)
    exact = example.twin(module, site)
    tensors = inputs_of(example, length)
    done = effect(example, module, tensors, span_of(example, length))
    wide = [tensor.double() for tensor in tensors]
    weights = [p.detach() for p in exact.parameters()]

    def run(name: str, *inputs: Tensor) -> Tensor:
        held = dict(zip((n for n, _ in exact.named_parameters()), inputs[3:], strict=True))
        use = _Use(example, exact, name, span_of(example, length, dtype=torch.float64))
        output: Tensor = torch.func.functional_call(use, {f"module.{key}": value for key, value in held.items()}, inputs[:3])
        return output

    for name, tensor in done.items():
        total = sensitivity(lambda *inputs, name=name: run(name, *inputs), [*wide, *weights])
        want = run(name, *wide, *weights).detach()
        steps = 2 * (at["width"] + at["head_dim"]) + 8
        bound = (4 * example.unit + gamma(steps, SINGLE)) * total + 4 * (length + 8) * SINGLE * row_size(want) + example.tiny
        message = f"{name} in {example.dtype} is farther from its own float64 run than four roundings"
        worst = max(worst, example.within(message, tensor, want, bound, name))
    return worst


class _Use(torch.nn.Module):
    """One output of a scheme as a function of its inputs and weights."""

    def __init__(self, example: LawExample, module: torch.nn.Module, name: str, span: Any) -> None:
        super().__init__()
        self.example, self.module, self.name, self.span = example, module, name, span

    def forward(self, x: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return effect(self.example, self.module, (x, query, key), self.span)[self.name].double()


def _reads_query(example: LawExample) -> None:
    length = example.at["length"]
    module, (x, query, key) = module_of(example), inputs_of(example, length)
    span = span_of(example, length)
    one = effect(example, module, (x, query, key), span, 0.5)["bias"]
    other = effect(example, module, (x, example.normal(*query.shape), key), span, 0.5)["bias"]
    scaled = effect(example, module, (x, query, key), span, 0.25)["bias"]
    if example.entry.reads_query:
        example.differs("it declares `reads_query`, but the bias is the same for another query", one, other)
    else:
        example.equal(
            "the bias depends on the query, but `reads_query` is false: layers would share the bias", other, one, "bias"
        )
        example.equal("the bias depends on the scale, which is allowed only with `reads_query`", scaled, one, "bias")


def _in_attention(subject: PartUnderTest, options: Any) -> bool:
    return "scores" in subject.entry.acts


def _draw_with_distance(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """At least two tokens where there is room: with one, every distance is 0, and what scales it gets no gradient."""
    at = draw(subject, options, random)
    limit = reach(subject, options, at) or 2
    return {**at, "length": max(at["length"], min(2, limit))}


def _draw_small(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """Few numbers, for laws that need a Jacobian."""
    at = draw(subject, options, random)
    at |= {"batch": 1, "length": min(at["length"], 3)}
    return changed(subject, options, at, heads=1 if at["head_dim"] > 16 else min(at["heads"], 2), kv_heads=1)


LAWS = (
    Law("gradients", "a gradient reaches every input and every table", acts_somewhere, _draw_with_distance, _gradients,
        SHRINKS | {"length": 2}),
    Law("slopes_hold", "R39: gradients agree with finite differences, in float64", acts_somewhere, _draw_small,
        _slopes_hold, SHRINKS, ("float64",)),
    Law("dtypes", "every dtype is within four roundings of its own float64 run", acts_somewhere, _draw_small, _dtypes, SHRINKS),
    Law("reads_query", "the bias depends on the query exactly where `reads_query` says so", _in_attention, draw, _reads_query,
        SHRINKS),
)  # fmt: skip


STARTS = (0, 1, 7, 100, 255, 256, 1000, 4097, 2**15 + 3, 2**17 + 5)
SHIFTS = (1, 2, 31, 128, 257, 4096, 2**16)


def _draw_moved(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    at = draw(subject, options, random)
    start, shift = random.choice(STARTS), random.choice(SHIFTS)
    limit = reach(subject, options, at)
    if limit is not None:
        room = limit - at["length"]
        start, shift = min(start, room // 2), min(shift, room - room // 2)
    return {**at, "start": start, "shift": shift}


def _additive(example: LawExample) -> float:
    length = example.at["length"]
    module, (x, query, key) = module_of(example), inputs_of(example, length)
    span = span_of(example, length)
    one = effect(example, module, (x, query, key), span)["embeddings"]
    alone = effect(example, module, (torch.zeros_like(x), query, key), span)["embeddings"]
    message = "embed(x) - x is not embed(0): what is added depends on the embedding"
    bound = 2 * example.unit * (x.double().abs() + alone.double().abs() + one.double().abs()) + example.tiny
    return example.within(message, one.double() - x.double(), alone, bound, "embeddings")


def _rotated(example: LawExample, module: Any, query: Tensor, key: Tensor, start: int) -> tuple[Tensor, Tensor]:
    x = torch.zeros(query.shape[0], query.shape[2], example.at["width"], dtype=example.dtype, device=example.device)
    done = effect(example, module, (x, query, key), span_of(example, query.shape[2], start, key_start=start))
    return done["query"], done["key"]


def _relative(example: LawExample) -> float:
    at, length = example.at, example.at["length"]
    module, (_, query, key) = module_of(example), inputs_of(example, length)
    one = _rotated(example, module, query, key, at["start"])
    other = _rotated(example, module, query, key, at["start"] + at["shift"])
    message = f"scores from position {at['start']} on change when all positions move by {at['shift']}"
    bound = relative_bound(example, at["start"] + at["shift"] + length, *one)
    return example.within(message, scores(*other), scores(*one), bound, "scores")


def _factors(example: LawExample, module: Any) -> Tensor:
    """The constants c (D,), read out at position 0. A scaling may stretch the features that it rotates, and no others."""
    at = example.at
    ones = torch.ones(1, at["heads"], 1, at["head_dim"], dtype=torch.float32, device=example.device)
    x = torch.zeros(1, 1, at["width"], device=example.device)
    single = example.twin(module, site_of(example.subject, at), dtype=torch.float32)
    turned = effect(example, single, (x, ones, ones[:, : at["kv_heads"]]), span_of(example, 1, dtype=torch.float32))["query"]
    if not bool((turned > 0).all()):
        raise example.broken("at position 0 the features of a vector of ones are no longer all above 0")
    return turned[0, 0, 0].double()


def _rotation(example: LawExample) -> float:
    at, length = example.at, example.at["length"]
    module, (_, query, key) = module_of(example), inputs_of(example, length)
    turned = _rotated(example, module, query, key, at["start"])
    first = _rotated(example, module, query[:, :, :1], key[:, :, :1], 0)
    factors, worst = _factors(example, module), 0.0
    off = 6 * example.unit + 16 * SINGLE
    for name, before, after, still in (("query", query, turned[0], first[0]), ("key", key, turned[1], first[1])):
        stretched = factors * before.double()
        lengths, turned_lengths = stretched.norm(dim=-1), after.double().norm(dim=-1)
        message = f"the lengths of {name} vectors at positions from {at['start']} on are not those at position 0"
        worst = max(worst, example.within(message, turned_lengths, lengths, off * lengths + example.tiny, name))
        message = f"position 0 does more to the {name} than to multiply each feature by a constant"
        bound = off * stretched[:, :, :1].abs().amax(-1, keepdim=True) + example.tiny
        worst = max(worst, example.within(message, still, stretched[:, :, :1], bound, name))
    return worst


def _relative_bias(example: LawExample) -> float:
    at, length = example.at, example.at["length"]
    module, (x, query, key) = module_of(example), inputs_of(example, length)
    shift = min(at["shift"], 300)
    one = effect(example, module, (x, query, key), span_of(example, length))["bias"]
    other = effect(example, module, (x, query, key), span_of(example, length, shift))["bias"]
    moved = other[..., shift:]
    message = f"the bias changes when query and key positions both move by {shift}"
    if example.entry.reads_query:
        return example.within(
            message, moved, one, bias_rounding(example, module, (x, query, key), span_of(example, length)), "bias"
        )
    example.equal(message, moved, one, "bias")
    return 0.0


MOVED = SHRINKS | {"start": 0, "shift": 1}
CLAIM_LAWS = (
    Law("additive", "embed(x) - x does not depend on x", claims("additive"), draw, _additive, SHRINKS),
    Law(
        "relative", "R32: scores depend on the difference of positions alone", claims("relative"), _draw_moved, _relative, MOVED
    ),
    Law("rotation", "R33: rotation keeps lengths; position 0 multiplies each feature by a constant", claims("rotation"),
        _draw_moved, _rotation, MOVED),
    Law("relative_bias", "R34: the bias depends on the difference of positions alone", claims("relative_bias"), _draw_moved,
        _relative_bias, MOVED),
)  # fmt: skip
