"""The known position schemes against their equations (`position_forms`), and those that say they are the same."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from .example import LawExample
from .law import Law, known_as
from .options import shared
from .part import PartUnderTest, Structure
from .position_claims import STARTS
from .position_forms import alibi_slopes, rotary_angles, rotate, sinusoid, t5_bucket
from .position_use import SHRINKS, changed, draw, effect, inputs_of, module_of, reach, rounding, span_of

MOVED = SHRINKS | {"start": 0}


def _draw_at(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    at = draw(subject, options, random)
    at["length"] = min(at["length"], 9)
    limit = reach(subject, options, at)
    start = random.choice(STARTS)
    return {**at, "start": start if limit is None else random.randint(0, limit - at["length"])}


def _rotary(example: LawExample) -> float:
    at, length, options = example.at, example.at["length"], shared(example)
    module, (x, query, key) = module_of(example), inputs_of(example, length)
    angles, factor = rotary_angles(options, options.dims or at["head_dim"])
    interleaved = example.subject.mathematics == "rotary_interleaved"
    done = effect(example, module, (x, query, key), span_of(example, length, at["start"], key_start=at["start"]))
    worst = 0.0
    for name, before, after in (("query", query, done["query"]), ("key", key, done["key"])):
        rows = before.double().reshape(-1, length, at["head_dim"]).tolist()
        turned = [
            [rotate(row, at["start"] + i, angles, factor, interleaved) for i, row in enumerate(rows[n])]
            for n in range(len(rows))
        ]
        want = torch.tensor(turned, dtype=torch.float64, device=example.device).reshape(before.shape)
        said = f"the rotated {name} from position {at['start']} on is not that of the equation"
        worst = max(worst, example.within(said, after, want, rounding(example, at["start"] + length, before, want), name))
    return worst


def _sinusoidal(example: LawExample) -> float:
    at, length, options = example.at, example.at["length"], shared(example)
    module, (x, query, key) = module_of(example), inputs_of(example, length)
    halves = example.subject.mathematics == "sinusoidal_halves"
    features = options.d_position or at["width"]
    waves = [
        sinusoid(at["start"] + i, features, options.base, options.last_frequency == "inclusive", halves) for i in range(length)
    ]
    added = torch.tensor(waves, dtype=torch.float64, device=example.device)
    done = effect(example, module, (x, query, key), span_of(example, length, at["start"]))["embeddings"]
    added = added.expand(*x.shape[:-1], -1)
    want = combined(options.combine, module, x, added)
    bound = rounding(example, at["start"] + length, x.double(), added, done)
    if options.combine == "concat":
        both = torch.cat((x.double(), added), -1)
        bound = (4 * example.unit + 4 * (at["start"] + length + both.shape[-1]) * 2.0**-24) * (
            both.abs().clamp(min=1) @ weight_of(module).abs().T
        )
    return example.within(
        f"the embeddings from position {at['start']} on are not x and the sinusoids", done, want, bound, "embeddings"
    )


def weight_of(module: Any) -> Tensor:
    """W of `concat`, the last parameter."""
    return list(module.parameters())[-1].detach().double()  # type: ignore[no-any-return]


def combined(combine: str, module: Any, x: Tensor, added: Tensor) -> Tensor:
    """x + p, W [x; p] or [x; p], in float64."""
    if combine == "add":
        return x.double() + added
    both = torch.cat((x.double(), added), -1)
    return both if combine == "append" else both @ weight_of(module).T


def _distances(example: LawExample) -> None:
    """Inner products of sinusoids depend on the distance alone: p(t) . p(t + s) = sum_i cos(s f_i)."""
    at = example.at
    module = module_of(example)
    x = torch.zeros(1, 9, at["width"], dtype=torch.float64, device=example.device)
    at_start, later = (module.embed(x, span_of(example, 9, start))[0] for start in (0, at["start"]))  # type: ignore[operator]
    bound = at["width"] * 8 * (at["start"] + 16) * 2.0**-24
    example.within("p(t) . p(t + s) is not the same for every t", later @ later.T, at_start @ at_start.T, bound, "embeddings")


def _learned(example: LawExample) -> float:
    at, length, options = example.at, example.at["length"], shared(example)
    module, (x, query, key) = module_of(example), inputs_of(example, length)
    table = next(module.parameters()).detach()
    rows = table.double()[options.offset + at["start"] :][:length]
    done = effect(example, module, (x, query, key), span_of(example, length, at["start"]))["embeddings"]
    want = combined(options.combine, module, x, rows.expand(*x.shape[:-1], -1))
    said = f"the embeddings from position {at['start']} on are not x and rows {options.offset + at['start']} on of the table"
    worst = example.within(said, done, want, _learned_bound(example, options.combine, module, x, rows), "embeddings")
    if options.count == "visible":
        visible = torch.rand(at["batch"], length, generator=example.generator).to(example.device) < 0.6
        got = effect(example, module, (x, query, key), span_of(example, length, visible=visible))["embeddings"]
        before = torch.zeros(at["batch"], length, dtype=torch.int64, device=example.device)
        for row in range(at["batch"]):
            seen = 0
            for token in range(length):
                before[row, token] = options.offset + seen if visible[row, token] else max(options.offset - 1, 0)
                seen += int(visible[row, token])
        want = combined(options.combine, module, x, table.double()[before])
        bound = _learned_bound(example, options.combine, module, x, table.double()[before])
        worst = max(
            worst, example.within("visible tokens are not counted from the first row on", got, want, bound, "embeddings")
        )
    return worst


def _learned_bound(example: LawExample, combine: str, module: Any, x: Tensor, rows: Tensor) -> Tensor:
    """Two roundings of each sum or number; of a product, one of every term of its sum."""
    size = combined("add" if combine == "add" else "append", module, x.abs(), rows.expand(*x.shape[:-1], -1).abs())
    if combine == "concat":
        size = size.shape[-1] * (size @ weight_of(module).abs().T)
    return 2 * example.unit * size + example.tiny


def _draw_heads(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    at = draw(subject, options, random)
    heads = random.choice((random.randint(1, 64), random.choice((3, 5, 6, 7, 12, 20, 24, 33, 40, 48, 63))))
    return changed(subject, options, {**at, "length": 4, "batch": 1}, heads=heads, kv_heads=heads)


def _alibi(example: LawExample) -> float:
    heads = example.at["heads"]
    module, (x, query, key) = module_of(example), inputs_of(example, 4)
    bias = effect(example, module, (x, query, key), span_of(example, 4, 5))["bias"]
    slopes = torch.tensor(alibi_slopes(heads), dtype=torch.float64, device=example.device)
    if len(set(bias[0, :, 0, 0].tolist())) != heads or not bool((bias[0, :, 0, 0] < 0).all()):
        raise example.broken(
            f"the slopes of {heads} heads must be positive and different; they are {(-bias[0, :, 0, 4]).tolist()}"
        )
    distance = (torch.arange(9, device=example.device) - (5 + torch.arange(4, device=example.device)).unsqueeze(1)).abs()
    want = (-slopes[:, None, None] * distance).expand(bias.shape)
    said = f"the bias of {heads} heads is not -slope |distance| with the published slopes"
    return example.within(said, bias, want, 8 * 2.0**-24 * want.abs(), "bias")


def _relative_t5(example: LawExample) -> float:
    """Few queries against keys on both sides, up to beyond the largest distance."""
    at, options = example.at, shared(example)
    module = module_of(example)
    table = next(module.parameters()).detach()
    far = min(options.max_distance + 3, 700)
    offset, keys = far, 2 * far + 2
    query = example.normal(1, at["heads"], 2, at["head_dim"])
    x, key = example.normal(1, 2, at["width"]), example.normal(1, at["kv_heads"], keys, at["head_dim"])
    bias = effect(example, module, (x, query, key), span_of(example, 2, offset, keys, 0))["bias"]
    for row in range(2):
        for column in range(keys):
            distance = column - (offset + row)
            if example.at["causal"] and distance > 0:
                continue
            bucket = t5_bucket(distance, options.buckets, options.max_distance, example.at["causal"])
            said = f"distance {distance} does not have the values of bucket {bucket}"
            example.equal(said, bias[0, :, row, column].to(table.dtype), table[bucket], "bias")
    return 0.0


def _relative_shaw(example: LawExample) -> float:
    at, options, length = example.at, shared(example), example.at["length"]
    module, (x, query, key) = module_of(example), inputs_of(example, length)
    table = next(module.parameters()).detach().double()
    offset = min(at["start"], 40)
    bias = effect(example, module, (x, query, key), span_of(example, length, offset), 0.5)["bias"]
    want = torch.zeros(bias.shape, dtype=torch.float64, device=example.device)
    size = torch.zeros_like(want)
    farthest = options.max_distance
    for i in range(length):
        for j in range(offset + length):
            row = table[min(max(j - offset - i, -farthest), farthest) + farthest]
            want[:, :, i, j] = 0.5 * query[:, :, i].double() @ row
            size[:, :, i, j] = 0.5 * query[:, :, i].double().abs() @ row.abs()
    bound = (2 * example.unit + 2 * at["head_dim"] * 2.0**-24) * size + example.tiny
    return example.within(f"the bias is not scale q . a[clip(distance, {farthest})]", bias, want, bound, "bias")


def _even(subject: PartUnderTest, options: Any) -> bool:
    return known_as("sinusoidal", "sinusoidal_halves")(subject, options) and getattr(options, "combine", "add") == "add"


def _draw_even(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    at = _draw_at(subject, options, random)
    return changed(subject, options, at, width=at["width"] + at["width"] % 2)


LAWS = (
    Law("rotary_form", "the equation of rotary positions", known_as("rotary_half", "rotary_interleaved"), _draw_at, _rotary,
        MOVED),
    Law("sinusoidal_form", "the equation of sinusoids", known_as("sinusoidal", "sinusoidal_halves"), _draw_at, _sinusoidal,
        MOVED),
    Law("sinusoidal_products", "p(t) . p(t + s) does not depend on t", _even, _draw_even, _distances, MOVED, ("float64",)),
    Law("learned_form", "row offset + t of the table is added", known_as("learned"), _draw_at, _learned, MOVED),
    Law("alibi_form", "-slope |distance| with the published slopes, for any number of heads", known_as("alibi"), _draw_heads,
        _alibi, {"heads": 1}),
    Law("relative_t5_form", "every distance has the value of its bucket", known_as("relative_t5"), _draw_at, _relative_t5),
    Law("relative_shaw_form", "scale q . a[clip(distance)]", known_as("relative_shaw"), _draw_at, _relative_shaw, MOVED),
)  # fmt: skip
