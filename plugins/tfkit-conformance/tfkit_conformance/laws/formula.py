"""The law `formula`: a part computes what its formula says.

The formula of a built-in part is the kit's (`reference`), that of a plugin's part is the entry's. An entry that brings none is
not checked, and the ledger says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.plugin import CellSite, expand_heads
from tfkit.plugin.model_parts import PositionSite, ScoreSite

from ..attention.bound import gamma
from ..reference import BUILT_IN, GATED, LayerFunctions, Unchecked, formula
from .law import SINGLE, Excluded, Law, LawExample, PartUnderTest, Structure
from .options import shared
from .placement_parts import draw as draw_layer, facts_of, input_of, wired
from .position_use import draw as draw_positions, effect, inputs_of, reach, rounding, site_of, span_of
from .rounding import sensitivity

STARTS = (0, 0, 1, 37, 41, 64, 100, 2047, 2049, 5000)
"""The position of the first token: also beyond 40, 64 and 2048, where tables often end."""

MISSING = "not checked: the entry brings no formula"


def formula_of(subject: PartUnderTest, place: str = "") -> Any:
    """The formula of a part: its own, the kit's, or the kit's for the part that it says it equals. Raises Unchecked."""
    try:
        return formula(subject.slot, subject.entry, place)
    except Unchecked:
        same = getattr(subject.entry, "same_as", "")
        if not same:
            raise
        known = subject.catalogue.find(subject.slot, same)
        if known is None:  # the law `declaration` reports it
            raise
        return formula(subject.slot, known, place)


def _drawn(draw: Callable[[PartUnderTest, Any, Random], Structure]) -> Callable[[PartUnderTest, Any, Random], Structure]:
    """The same cases, or none where there is no formula."""

    def drawn(subject: PartUnderTest, options: Any, random: Random) -> Structure:
        try:
            for place in sorted(subject.entry.acts) if subject.slot == "position" else ("",):
                formula_of(subject, place)
        except Unchecked:
            raise Excluded(MISSING) from None
        return draw(subject, options, random)

    return drawn


def _options(example: LawExample) -> Any:
    """The options as the formula reads them: those of the part that it says it equals, or its own."""
    has_formula = example.entry.formulas if example.subject.slot == "position" else example.entry.formula
    return example.options if has_formula or not getattr(example.entry, "same_as", "") else shared(example)


def _weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().double() for name, weight in module.state_dict().items()}


def _bound(example: LawExample, function: Callable[..., Tensor], leaves: list[Tensor], roundings: int, terms: int) -> Tensor:
    """`roundings` to the dtype, and sums of `terms`, of what the formula adds up: see `rounding`."""
    inside = gamma(terms + 16, min(SINGLE, example.unit))
    return (roundings * example.unit + inside) * sensitivity(function, leaves) + example.tiny


# ---- activation


def _draw_numbers(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {"count": 64, "reach": random.choice((1, 3, 6, 12, 30))}


def _activation(example: LawExample) -> float:
    at, name = example.at, example.subject.mathematics
    if name in BUILT_IN["activation"] and example.entry.gated is not (name in GATED):
        raise example.broken(f"`gated` is {example.entry.gated} where `{name}` is not")
    drawn = (torch.rand(at["count"], generator=example.generator, dtype=torch.float64) * 2 - 1) * at["reach"]
    x = drawn.to(example.dtype).to(example.device)
    want = formula_of(example.subject)(_options(example), x.double())
    inner = min(SINGLE, example.unit)
    size = want.abs() + (x.double() * want).abs() * (example.unit > SINGLE)
    bound = 3 * example.unit * size + 16 * inner * (x.double().abs() + want.abs()) + example.tiny
    return example.within("the value is not that of the formula", example.subject.make(x, example.options), want, bound)


# ---- norm


def _draw_norm(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {
        "width": random.choice((2, 3, 4, 5, 8, 16, 33)),
        "tokens": random.choice((1, 2, 3)),
        "scale": random.choice((0, 0, 3)),
    }


def _norm(example: LawExample) -> float:
    """Also small vectors, which show where eps stands."""
    at = example.at
    module = example.built(at["width"])
    x = torch.cat([example.normal(at["tokens"], at["width"]) * 2.0 ** at["scale"], example.normal(1, at["width"]) * 2.0**-9])
    weights, function, options = _weights(module), formula_of(example.subject), _options(example)
    want = function(options, weights, x.double())
    names = list(weights)
    bound = _bound(
        example,
        lambda x, *tensors: function(options, dict(zip(names, tensors, strict=True)), x),
        [x.double(), *weights.values()],
        3,
        at["width"],
    )
    return example.within("a vector is not normed as the formula says", module(x), want, bound)


# ---- cell


def _draw_cell(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {
        "rows": random.choice((1, 2)), "steps": random.choice((1, 2, 4)), "width": random.choice((1, 3, 4)),
        "second": random.choice((0, 0, 2, 5)), "d_state": random.choice((1, 2, 5)),
    }  # fmt: skip


def _cell(example: LawExample) -> float:
    """Several steps, so that an error of a state that is read again shows too."""
    at, function, options = example.at, formula_of(example.subject), _options(example)
    site = CellSite(tuple(width for width in (at["width"], at["second"]) if width), at["d_state"])
    module: Any = example.built(site)
    inputs = [example.normal(at["rows"], at["steps"], width) for width in site.inputs]
    state = tuple(torch.tanh(example.normal(at["rows"], at["d_state"])) for _ in range(example.entry.states))
    weights = _weights(module)
    names, states = list(weights), example.entry.states

    def run(*leaves: Tensor) -> Tensor:
        sequences = leaves[: len(inputs)]
        held: tuple[Tensor, ...] = leaves[len(inputs) : len(inputs) + states]
        leaf_weights = dict(zip(names, leaves[len(inputs) + states :], strict=True))
        outputs = []
        for t in range(at["steps"]):
            held = function(options, leaf_weights, [x[:, t] for x in sequences], held)
            outputs.append(torch.stack(held))
        return torch.stack(outputs)

    leaves = [tensor.double() for tensor in (*inputs, *state, *weights.values())]
    got, held = [], state
    for t in range(at["steps"]):
        held = module.step(torch.stack([module.project(x[:, t], i) for i, x in enumerate(inputs)]).sum(0), held)
        got.append(torch.stack(held))
    bound = _bound(example, run, leaves, 12 * at["steps"], (site.width + at["d_state"]) * at["steps"]).amax()
    return example.within("the state is not that of the formula", torch.stack(got), run(*leaves), float(bound))


# ---- score


def _draw_score(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {
        "groups": random.choice((1, 2)), "shared": random.choice((1, 2, 3)), "queries": random.choice((1, 2, 3)),
        "keys": random.choice((1, 4)), "head_dim": random.choice((2, 3, 8)), "key_dim": random.choice((0, 4, 5)),
    }  # fmt: skip


def _score(example: LawExample) -> float:
    at, function, options = example.at, formula_of(example.subject), _options(example)
    site = ScoreSite(at["groups"] * at["shared"], at["head_dim"], at["key_dim"])
    module: Any = example.built(site)
    query = example.normal(1, site.heads, at["queries"], site.head_dim)
    key = example.normal(1, at["groups"], at["keys"], site.key_features)
    weights = _weights(module)
    names = list(weights)

    def run(query: Tensor, key: Tensor, *tensors: Tensor) -> Tensor:
        return function(options, dict(zip(names, tensors, strict=True)), query, expand_heads(key, site.heads))  # type: ignore[no-any-return]

    leaves = [query.double(), key.double(), *weights.values()]
    bound = _bound(example, run, leaves, 8, site.head_dim + site.key_features).amax()
    got = module(query, module.map_keys(key))
    return example.within("the score is not that of the formula", got, run(*leaves), float(bound))


# ---- placement


def _placement(example: LawExample) -> float:
    at, random = example.at, Random(example.generator.initial_seed())
    scales = {name: random.choice((0.5, 1.0, 1.0, 2.0)) for name in at["sublayers"]}
    wired_layer, x = wired(example, scales=scales), input_of(example)
    layer = LayerFunctions(
        {name: branch.give for name, branch in wired_layer.branches.items()},
        {name: norm.give for name, norm in wired_layer.norms.items()},
        scales,
        facts_of(at),
    )
    function, options = formula_of(example.subject), _options(example)
    skip = example.entry.constants(options, facts_of(at)).skip
    steps = 8 * (at["width"] + 8) * len(at["sublayers"])
    total = sensitivity(lambda x: function(options, layer, x), [x]) + 1.0
    bound = gamma(steps, example.unit) * total * (1.0 + abs(skip)) ** len(at["sublayers"])
    names = ", ".join(at["sublayers"])
    message = f"the layer of {names} is not wired as the formula says, with the scales {scales}"
    return example.within(message, wired_layer(x), function(options, layer, x), bound)


# ---- position


def _draw_positions(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    at = draw_positions(subject, options, random)
    at |= {"length": min(at["length"], 9), "start": random.choice(STARTS)}
    limit = reach(subject, options, at)
    if at["rows"]:  # an image is one call
        at |= {"length": at["rows"], "start": 0}
    elif limit is not None:
        at |= {"start": random.randint(0, limit - at["length"])}
    if "scores" in subject.entry.acts:  # keys on both sides; a bias that reads the query has a number for every feature
        at |= {"ahead": 0 if at["causal"] else random.choice((0, 3, 150))}
        at |= {"start": min(at["start"], 100)} if subject.entry.reads_query else {}
        at |= {"heads": random.choice((at["heads"], at["heads"], 3, 12, 16)), "kv_heads": 1}
    return at


def _site(example: LawExample) -> PositionSite:
    """The site of the case. Where the input has a fixed number of positions, they are a grid behind two other positions."""
    site = site_of(example.subject, example.at)
    return site if site.rows is None else replace(site, grid=(2, site.rows // 2 - 1), prefix=2)


def _position(example: LawExample) -> float:
    at, length, start = example.at, example.at["length"], example.at["start"]
    site = _site(example)
    module = example.built(site)
    x, query, key = inputs_of(example, length)
    span = span_of(example, length, start)
    if "scores" in example.entry.acts:
        span = span_of(example, length, start, start + length + at["ahead"], 0)
    span = span if site.grid is None else replace(span, grid=site.grid)
    options, weights = _options(example), _weights(module)
    done = effect(example, module, (x, query, key), span)
    positions = torch.arange(start, start + length, device=example.device)
    worst = 0.0
    if "embeddings" in example.entry.acts:
        function = formula_of(example.subject, "embeddings")
        worst = max(worst, _embedded(example, function, module, x, positions.expand(len(x), -1), done["embeddings"], span))
    if "queries_keys" in example.entry.acts:
        rotate = formula_of(example.subject, "queries_keys")
        for name, before in (("query", query), ("key", key)):
            want = rotate(options, site, weights, before.double(), positions)
            message = f"the {name} from position {start} on is not turned as the formula says"
            bound = rounding(example, start + length, before, want)
            worst = max(worst, example.within(message, done[name], want, bound, name))
    if "scores" in example.entry.acts:
        bias = formula_of(example.subject, "scores")
        distances = torch.arange(span.keys, device=example.device) - positions[:, None]
        want = bias(options, site, weights, query.double(), distances, 0.5).expand(done["bias"].shape)
        seen = distances <= 0 if at["causal"] else torch.ones_like(distances, dtype=torch.bool)
        names = list(weights)
        size = want.abs()
        if example.entry.reads_query:
            at_size = {name: weights[name].abs() for name in names}
            size = bias(options, site, at_size, query.double().abs(), distances, 0.5)
        bound = (4 * example.unit + 2 * (query.shape[-1] + 8) * SINGLE) * size + example.tiny
        message = f"the bias of queries from position {start} on is not that of the formula"
        got = done["bias"].where(seen, 0.0)
        worst = max(worst, example.within(message, got, want.where(seen, 0.0), bound.expand(want.shape), "bias"))
    return worst


def _embedded(example: LawExample, function: Any, module: Any, x: Tensor, positions: Tensor, got: Tensor, span: Any) -> float:
    """What is added to embeddings, also where only real tokens count."""
    options, site, weights = _options(example), _site(example), _weights(module)
    largest = {name: weight.abs() for name, weight in weights.items()}
    farthest = int(positions.max()) + 8

    def compared(message: str, got: Tensor, positions: Tensor, where: Tensor) -> float:
        want = function(options, site, weights, x.double(), positions)
        terms = max([1.0, *(float(weight.max()) for weight in largest.values())]) * x.shape[-1]
        size = function(options, site, largest, x.double().abs(), positions).abs() + terms
        bound = (4 * example.unit + 4 * farthest * SINGLE) * size + example.tiny
        return example.within(message, got[where], want[where], bound[where], "embeddings")

    everywhere = torch.ones(positions.shape, dtype=torch.bool, device=x.device)
    worst = compared(
        f"the embeddings from position {int(positions[0, 0])} on are not those of the formula", got, positions, everywhere
    )
    if not example.entry.counts_padding(options):
        visible = torch.rand(positions.shape, generator=example.generator).to(example.device) < 0.6
        hidden = replace(span, offset=0, key_start=0, keys=positions.shape[1], visible=visible)
        done = effect(example, module, (x, *inputs_of(example, positions.shape[1])[1:]), hidden)["embeddings"]
        counted = visible.long().cumsum(1) - visible.long()
        worst = max(worst, compared("visible tokens are not counted from the first position on", done, counted, visible))
    return worst


def _acts(subject: PartUnderTest, options: Any) -> bool:
    """A position scheme that acts nowhere has nothing to compute."""
    return subject.slot != "position" or bool(subject.entry.acts)


def _law(draw: Any, evaluate: Any, shrinks: dict[str, int]) -> tuple[Law, ...]:
    drawn = _drawn(draw)
    return (
        Law("formula", "the part computes its formula", _acts, drawn, evaluate, shrinks),
        Law("formula_exact", "the part computes its formula, in float64", _acts, drawn, evaluate, shrinks, ("float64",)),
    )


LAWS = {
    "activation": _law(_draw_numbers, _activation, {"count": 1, "reach": 1}),
    "norm": _law(_draw_norm, _norm, {"tokens": 1, "width": 2, "scale": 0}),
    "cell": _law(_draw_cell, _cell, {"rows": 1, "steps": 1, "width": 1, "d_state": 1}),
    "score": _law(_draw_score, _score, {"groups": 1, "shared": 1, "queries": 1, "keys": 1, "head_dim": 2}),
    "placement": _law(draw_layer, _placement, {"tokens": 1, "batch": 1, "width": 2, "layers": 1})[1:],
    "position": _law(_draw_positions, _position, {"batch": 1, "length": 1, "start": 0, "ahead": 0}),
}
