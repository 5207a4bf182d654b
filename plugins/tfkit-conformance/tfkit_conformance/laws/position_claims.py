"""Laws of the properties that a position scheme claims.

additive        embed(x) - x = embed(0)
relative        R32   R(p + s) q . R(r + s) k = R(p) q . R(r) k            at every distance from the start
rotation        R33   |R(p) q| = |R(0) q|,   R(0) q = c q                 c > 0 a constant of each feature
relative_bias   R34   bias(p + s, r + s) = bias(p, r)
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from .example import SINGLE, LawExample
from .law import Law, claims
from .part import PartUnderTest, Structure
from .position_use import (
    SHRINKS,
    bias_rounding,
    draw,
    effect,
    inputs_of,
    module_of,
    reach,
    relative_bound,
    scores,
    site_of,
    span_of,
)

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
    said = "embed(x) - x is not embed(0): what is added depends on the embedding"
    bound = 2 * example.unit * (x.double().abs() + alone.double().abs() + one.double().abs()) + example.tiny
    return example.within(said, one.double() - x.double(), alone, bound, "embeddings")


def _rotated(example: LawExample, module: Any, query: Tensor, key: Tensor, start: int) -> tuple[Tensor, Tensor]:
    x = torch.zeros(query.shape[0], query.shape[2], example.at["width"], dtype=example.dtype, device=example.device)
    done = effect(example, module, (x, query, key), span_of(example, query.shape[2], start, key_start=start))
    return done["query"], done["key"]


def _relative(example: LawExample) -> float:
    at, length = example.at, example.at["length"]
    module, (_, query, key) = module_of(example), inputs_of(example, length)
    one = _rotated(example, module, query, key, at["start"])
    other = _rotated(example, module, query, key, at["start"] + at["shift"])
    said = f"scores from position {at['start']} on change when all positions move by {at['shift']}"
    bound = relative_bound(example, at["start"] + at["shift"] + length, *one)
    return example.within(said, scores(*other), scores(*one), bound, "scores")


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
        lengths, found = stretched.norm(dim=-1), after.double().norm(dim=-1)
        said = f"the lengths of {name} vectors at positions from {at['start']} on are not those at position 0"
        worst = max(worst, example.within(said, found, lengths, off * lengths + example.tiny, name))
        said = f"position 0 does more to the {name} than to multiply each feature by a constant"
        bound = off * stretched[:, :, :1].abs().amax(-1, keepdim=True) + example.tiny
        worst = max(worst, example.within(said, still, stretched[:, :, :1], bound, name))
    return worst


def _relative_bias(example: LawExample) -> float:
    at, length = example.at, example.at["length"]
    module, (x, query, key) = module_of(example), inputs_of(example, length)
    shift = min(at["shift"], 300)
    one = effect(example, module, (x, query, key), span_of(example, length))["bias"]
    other = effect(example, module, (x, query, key), span_of(example, length, shift))["bias"]
    moved = other[..., shift:]
    said = f"the bias changes when query and key positions both move by {shift}"
    if example.entry.reads_query:
        return example.within(
            said, moved, one, bias_rounding(example, module, (x, query, key), span_of(example, length)), "bias"
        )
    example.equal(said, moved, one, "bias")
    return 0.0


MOVED = SHRINKS | {"start": 0, "shift": 1}
LAWS = (
    Law("additive", "embed(x) - x does not depend on x", claims("additive"), draw, _additive, SHRINKS),
    Law(
        "relative", "R32: scores depend on the difference of positions alone", claims("relative"), _draw_moved, _relative, MOVED
    ),
    Law("rotation", "R33: rotation keeps lengths; position 0 multiplies each feature by a constant", claims("rotation"),
        _draw_moved, _rotation, MOVED),
    Law("relative_bias", "R34: the bias depends on the difference of positions alone", claims("relative_bias"), _draw_moved,
        _relative_bias, MOVED),
)  # fmt: skip
