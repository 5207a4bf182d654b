"""Laws of every score function: score(q, map_keys(k)) of each query and key alone, in the dtype of its weights."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.plugin import expand_heads
from tfkit.plugin.model_parts import Cost, ScoreSite, Sizes

from .declared import check_parameters, check_reached, check_unwritten
from .law import Law, LawExample, PartUnderTest, Structure, always
from .rounding import derivative_holds, largest_bound

ROUNDINGS = 8
"""Roundings to the dtype in a score: of the mapped key, the mapped query, a hidden layer of a few steps, the product."""


def _draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {
        "rows": random.choice((1, 2)), "groups": random.choice((1, 1, 2)), "shared": random.choice((1, 2, 3)),
        "queries": random.choice((1, 2, 3)), "keys": random.choice((1, 2, 4, 5)), "head_dim": random.choice((2, 3, 8)),
        "key_dim": random.choice((0, 4, 5)),
    }  # fmt: skip


def _draw_many(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """At least two rows, queries, keys and key heads, so that there are others."""
    return {**_draw(subject, options, random), "rows": 2, "groups": 2, "queries": 3, "keys": random.choice((2, 5))}


def _site(example: LawExample) -> ScoreSite:
    at = example.at
    return ScoreSite(at["groups"] * at["shared"], at["head_dim"], at["key_dim"])


def _inputs(example: LawExample, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """query (B,H,Q,D) and key (B,G,K,key_dim)."""
    at, site = example.at, _site(example)
    query = example.normal(at["rows"], site.heads, at["queries"], site.head_dim, dtype=dtype)
    return query, example.normal(at["rows"], at["groups"], at["keys"], site.key_features, dtype=dtype)


def _score(example: LawExample, module: Any, query: Tensor, key: Tensor) -> Tensor:
    """The scores (B,H,Q,K), with the shapes of both steps checked."""
    mapped = module.map_keys(key)
    if not isinstance(mapped, Tensor) or mapped.shape[:-1] != key.shape[:-1]:
        returned = tuple(mapped.shape) if isinstance(mapped, Tensor) else type(mapped).__name__
        raise example.broken(f"map_keys of a key {tuple(key.shape)} gives {returned}, expected {(*key.shape[:-1], 'E')}")
    return example.alike("the score", module(query, mapped), (*query.shape[:3], key.shape[2]))


def _run(example: LawExample, module: nn.Module) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The score as a function of query, key and weights, in float64, and the weights."""
    exact: Any = example.twin(module, _site(example))
    names = [name for name, _ in exact.named_parameters()]

    def run(query: Tensor, key: Tensor, *weights: Tensor) -> Tensor:
        pairs = {f"score.{name}": weight for name, weight in zip(names, weights, strict=True)}
        return torch.func.functional_call(_Whole(exact), pairs, (query, key))  # type: ignore[no-any-return]

    return run, [parameter.detach().double() for parameter in module.parameters()]


class _Whole(nn.Module):
    """Both steps of a score as one module."""

    def __init__(self, score: Any) -> None:
        super().__init__()
        self.score = score

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores: Tensor = self.score(query, self.score.map_keys(key))
        return scores


def _bound(example: LawExample, module: nn.Module, query: Tensor, key: Tensor) -> float:
    run, weights = _run(example, module)
    terms = query.shape[3] + key.shape[3]
    return largest_bound(example, run, [query.double(), key.double(), *weights], ROUNDINGS, terms)


def _declaration(example: LawExample) -> None:
    site = _site(example)
    check_parameters(example, example.bare(site), example.entry.parameters(example.options, site))
    at = example.at
    cost = example.entry.costs(example.options, site, at["groups"], Sizes(at["rows"], at["queries"], at["keys"]))
    if not isinstance(cost, Cost) or cost.flops < 0 or cost.elements < 0:
        raise example.broken(f"`costs` gives {cost!r}, not a Cost of counts from 0 up")


def _outputs(example: LawExample) -> None:
    module: Any = example.built(_site(example))
    query, key = _inputs(example)
    kept = [query.clone(), key.clone()]
    first = example.alike(
        "the score", _score(example, module.train(), query, key), (*query.shape[:3], key.shape[2]), query.dtype
    )
    example.finite("the score", first)
    check_unwritten(example, kept, [query, key])
    _score(example, module, *_inputs(example))
    example.equal("a second call, after another one, gives a different result", _score(example, module, query, key), first)
    example.equal("training and evaluation differ", _score(example, module.eval(), query, key), first)


def _pairs(example: LawExample) -> None:
    """Other queries, keys, heads and batch rows get other values, and no bit of this score changes: a hidden key is one."""
    module = example.built(_site(example))
    query, key = _inputs(example)
    other_query, other_key = _inputs(example)
    chosen = int(example.generator.initial_seed())
    row, head, q, k = (chosen % size for size in (*query.shape[:3], key.shape[2]))
    group = head // example.at["shared"]
    other_query[row, head, q], other_key[row, group, k] = query[row, head, q], key[row, group, k]
    one = _score(example, module, query, key)[row, head, q, k]
    other = _score(example, module, other_query, other_key)[row, head, q, k]
    example.equal(f"the score of query {q} and key {k} in head {head} of batch row {row} depends on others", other, one)


def _steps(example: LawExample) -> float:
    """A decoder asks one query at a time, and maps keys as they come."""
    module: Any = example.built(_site(example))
    query, key = _inputs(example)
    whole = _score(example, module, query, key)
    bound = 2 * _bound(example, module, query, key)
    one_by_one = torch.cat([_score(example, module, query[:, :, q : q + 1], key) for q in range(query.shape[2])], 2)
    mapped = torch.cat([module.map_keys(key[:, :, k : k + 1]) for k in range(key.shape[2])], 2)
    return max(
        example.within("one query at a time gives other scores than all at once", one_by_one, whole, bound),
        example.within("keys mapped one at a time give other scores than all at once", module(query, mapped), whole, bound),
    )


def _grouped(example: LawExample) -> float:
    """A1: query head h reads key head h // (H // G)."""
    module = example.built(_site(example))
    query, key = _inputs(example)
    apart = _score(example, module, query, expand_heads(key, query.shape[1]))
    bound = 2 * _bound(example, module, query, key)
    return example.within(
        "query head h does not read key head h // (H // G)", _score(example, module, query, key), apart, bound
    )


def _layouts(example: LawExample) -> float:
    module = example.built(_site(example))
    query, key = _inputs(example)
    across = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (query, key))
    bound = 2 * _bound(example, module, query, key)
    dense = _score(example, module, query, key)
    return example.within("the score depends on how the inputs lie in memory", _score(example, module, *across), dense, bound)


def _gradients(example: LawExample) -> None:
    module = example.built(_site(example))
    query, key = (tensor.requires_grad_() for tensor in _inputs(example))
    weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    check_reached(example, _score(example, module, query, key), {"query": query, "key": key} | weights)


def _slopes_hold(example: LawExample) -> float:
    module = example.built(_site(example))
    query, key = (tensor.requires_grad_() for tensor in _inputs(example))
    leaves = [query, key, *(weight for weight in module.parameters() if weight.requires_grad)]
    return derivative_holds(example, lambda: _score(example, module, query, key), leaves)


def _dtypes(example: LawExample) -> float:
    """Also with weights in float32, as under autocast."""
    site, worst = _site(example), 0.0
    for dtype in {example.dtype, torch.promote_types(example.dtype, torch.float32)}:
        module = example.built(site, dtype=dtype)
        query, key = _inputs(example)
        run, weights = _run(example, module)
        message = f"the score in {example.dtype} is farther from its own float64 run than {ROUNDINGS} roundings"
        bound = _bound(example, module, query, key)
        want = run(query.double(), key.double(), *weights)
        worst = max(worst, example.within(message, _score(example, module, query, key).to(example.dtype), want, bound))
    return worst


def _dot_product(example: LawExample) -> float:
    module: Any = example.built(_site(example))
    query, key = _inputs(example)
    mapped = module.map_keys(key)
    example.alike("a mapped key", mapped, (*key.shape[:3], query.shape[3]))
    want = query.double() @ expand_heads(mapped, query.shape[1]).double().mT
    message = "its entry says `dot`, and the score is not the dot product of query and mapped key"
    return example.within(message, module(query, mapped), want, _bound(example, module, query, key))


SMALLER = {"rows": 1, "groups": 1, "shared": 1, "queries": 1, "keys": 1, "head_dim": 2}
MANY = SMALLER | {"rows": 2, "groups": 2, "queries": 2, "keys": 2}
LAWS = (
    Law("declaration", "build gives the declared weights and nothing else; costs are counts", always, _draw, _declaration,
        dtypes=("float32",)),
    Law("outputs", "(B,H,Q,D), (B,G,K,E) to (B,H,Q,K); finite; inputs unchanged; no state; the same in training", always, _draw,
        _outputs, SMALLER),
    Law("pairs", "a score depends on its own query and key alone, bit for bit", always, _draw_many, _pairs, MANY),
    Law("steps", "one query at a time, and keys mapped one at a time, give the scores of all at once", always, _draw_many,
        _steps, SMALLER),
    Law("grouped", "A1: query head h reads key head h // (H // G)", always, _draw_many, _grouped, SMALLER),
    Law("layouts", "any strides give the same numbers", always, _draw, _layouts, SMALLER),
    Law("gradients", "a gradient reaches query, key and every weight", always, _draw, _gradients, SMALLER),
    Law("slopes_hold", "R39: gradients agree with finite differences, in float64", always, _draw, _slopes_hold, SMALLER,
        ("float64",)),
    Law("dtypes", "every dtype is near its own float64 run, also with wider weights", always, _draw, _dtypes, SMALLER),
    Law("dot_product", "an entry with `dot` computes q . map_keys(k)", lambda subject, options: bool(subject.entry.dot), _draw,
        _dot_product, SMALLER),
)  # fmt: skip
