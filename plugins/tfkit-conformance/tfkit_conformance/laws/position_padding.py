"""Laws of padding: `counts_padding` must say whether padding changes what a scheme does to other tokens."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from .example import LawExample
from .law import Law
from .part import Excluded, PartUnderTest, Structure
from .position_use import (
    SHRINKS,
    acts_somewhere,
    bias_rounding,
    draw,
    effect,
    inputs_of,
    module_of,
    reach,
    relative_bound,
    rounding,
    scores,
    site_of,
    span_of,
)


def _pads(example: LawExample) -> float:
    """`left` hidden tokens before, with the same visible ones after."""
    at, length, worst = example.at, example.at["length"], 0.0
    left = at["left"]
    site = site_of(example.subject, at)
    module, (x, query, key) = example.built(site), inputs_of(example, length)
    visible = torch.ones(at["batch"], left + length, dtype=torch.bool, device=example.device)
    visible[:, :left] = False
    longer = [torch.cat((example.normal(*t.shape[:-2], left, t.shape[-1]), t), -2) for t in (x, query, key)]
    padded = (longer[0], longer[1], longer[2])
    tight = effect(example, module, (x, query, key), span_of(example, length))
    wide = effect(example, module, padded, span_of(example, left + length, visible=visible))
    pairs: list[tuple[str, Tensor, Tensor, Tensor]] = []
    if "embeddings" in tight:
        got, want = wide["embeddings"][:, left:], tight["embeddings"]
        pairs.append(("embeddings", got, want, rounding(example, left + length, got, want)))
    if "query" in tight:
        got, want = scores(wide["query"], wide["key"])[..., left:, left:], scores(tight["query"], tight["key"])
        pairs.append(("scores", got, want, relative_bound(example, left + length, tight["query"], tight["key"])))
    if "bias" in tight:
        bound = bias_rounding(example, module, (x, query, key), span_of(example, length))
        pairs.append(("bias", wide["bias"][..., left:, left:], tight["bias"], bound))
    counts = example.entry.counts_padding(example.options)
    said = f"{left} hidden tokens before the others change {{}}, but `counts_padding` is false"
    if counts:
        if all(torch.equal(got, want) for _, got, want, _ in pairs):
            raise example.broken(f"`counts_padding` is true, but {left} hidden tokens before the others change nothing")
        return worst
    for name, got, want, bound in pairs:
        worst = max(worst, example.within(said.format(name), got, want, bound, name))
    return worst


def _draw_padded(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    at = draw(subject, options, random)
    limit = reach(subject, options, at)
    left = random.choice((1, 2, 5))
    if limit == 1:
        raise Excluded("it has one position: there is no room for padding")
    if limit is not None:
        left = min(left, limit - 1)
        at["length"] = min(at["length"], limit - left)
    return {**at, "left": left}


def _scattered(example: LawExample) -> float:
    """Where padding does not count, hidden tokens between the others do not either (for embeddings)."""
    at, length = example.at, example.at["length"]
    module, (x, _, _) = module_of(example), inputs_of(example, length)
    visible = torch.rand(at["batch"], length, generator=example.generator).to(example.device) < 0.6
    visible[:, length // 2] = True
    got, worst = module.embed(x, span_of(example, length, visible=visible)), 0.0  # type: ignore[operator]
    for row in range(at["batch"]):
        close = x[row : row + 1, visible[row]]
        want = module.embed(close, span_of(example, close.shape[1]))[0]  # type: ignore[operator]
        seen = got[row, visible[row]]
        said = f"hidden tokens between the visible ones of batch row {row} shift them, but `counts_padding` is false"
        worst = max(worst, example.within(said, seen, want, rounding(example, length, seen, want), "embeddings"))
    return worst


def _uncounted_embeddings(subject: PartUnderTest, options: Any) -> bool:
    return "embeddings" in subject.entry.acts and not subject.entry.counts_padding(options)


FLAT = ("float32",)
LAWS = (
    Law("counts_padding", "R17: `counts_padding` says whether hidden tokens before the others change them", acts_somewhere,
        _draw_padded, _pads, SHRINKS | {"left": 1}),
    Law("hidden_between", "R17: if padding does not count, hidden tokens between others do not count either",
        _uncounted_embeddings, draw, _scattered, SHRINKS, FLAT),
)  # fmt: skip
