"""Laws of every position scheme: the contract of `tfkit.attention.positions` and of its entry."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tfkit import InputError
from tfkit.plugin.model_parts import PositionRange, PositionSite

from .declared import check_claims, check_parameters, check_reasons, check_unwritten
from .law import Excluded, Law, LawExample, PartUnderTest, Structure, always
from .position_use import (
    SHRINKS,
    Given,
    acts_somewhere,
    any_site,
    at_least,
    bias_rounding,
    draw,
    draw_site,
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


def _draw_any(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return draw_site(subject, options, random) if random.random() < 0.5 else {**any_site(random), "rows": random.choice((0, 9))}


def _declaration(example: LawExample) -> None:
    entry, options, site = example.entry, example.options, site_of(example.subject, example.at)
    check_claims(example)
    reasons = entry.unsupported(options, site)
    if not check_reasons(example, reasons):
        return
    if entry.unsupported(options, site) != reasons:
        raise example.broken("`unsupported` gives two answers to the same question")
    module = example.bare(site)
    declared = entry.parameters(options, site)
    check_parameters(example, module, declared)
    tables = entry.tables(options)
    if entry.acts - {"embeddings"} and (tables == "none") == bool(declared):
        raise example.broken(f"it has {len(declared)} parameters at attention, but `tables` is `{tables}`")
    if entry.acts == {"scores"} and not entry.reads_query:
        # Layers whose heads differ in width alone share one table, and do not receive the width.
        narrow = PositionSite(site.width, site.heads, 0, site.rows, site.causal, site.cross)
        if [p.shape for p in entry.parameters(options, narrow)] != [p.shape for p in declared]:
            raise example.broken("its tables depend on head_dim though its bias does not read the query")
        check_parameters(example, example.bare(narrow), declared)


def _outputs(example: LawExample) -> None:
    length = example.at["length"]
    module, tensors, span = module_of(example), inputs_of(example, length), span_of(example, length)
    kept = [tensor.clone() for tensor in tensors]
    first = effect(example, module, tensors, span)
    for name, tensor in first.items():
        example.finite(name, tensor)
    check_unwritten(example, kept, list(tensors))
    others = inputs_of(example, max(1, length - 1))
    effect(example, module, others, span_of(example, max(1, length - 1)))
    for name, tensor in effect(example, module, tensors, span).items():
        example.equal(f"{name}: a second call, after another one, gives a different result", tensor, first[name], name)


def _limit(example: LawExample, module: nn.Module, inputs: Given, span: PositionRange, name: str, *tensors: Tensor) -> Tensor:
    """How much two evaluations of one output may differ."""
    if name == "bias":
        return bias_rounding(example, module, inputs, span)
    return rounding(example, span.keys, *tensors)


def _layouts(example: LawExample) -> float:
    length, worst = example.at["length"], 0.0
    module, tensors, span = module_of(example), inputs_of(example, length), span_of(example, length)
    dense = effect(example, module, tensors, span)
    x, query, key = (tensor.transpose(-1, -2).contiguous().transpose(-1, -2) for tensor in tensors)
    for name, tensor in effect(example, module, (x, query, key), span).items():
        bound = _limit(example, module, tensors, span, name, tensor, dense[name])
        worst = max(worst, example.within(f"{name} depends on how the input lies in memory", tensor, dense[name], bound, name))
    return worst


def _rows(example: LawExample) -> None:
    batch, length = example.at["batch"], example.at["length"]
    row = int(example.generator.initial_seed() % batch)
    module, tensors = module_of(example), inputs_of(example, length)
    visible = torch.rand(batch, length, generator=example.generator).to(example.device) < 0.7
    whole = effect(example, module, tensors, span_of(example, length, visible=visible))
    others = inputs_of(example, length)
    for other, tensor in zip(others, tensors, strict=True):
        other[row] = tensor[row]
    hidden = ~visible
    hidden[row] = visible[row]
    for name, tensor in effect(example, module, others, span_of(example, length, visible=hidden)).items():
        example.equal(f"{name} of batch row {row} depends on the other rows", tensor[row], whole[name][row], name)


def _chunks(example: LawExample) -> float:
    length, worst = example.at["length"], 0.0
    module, tensors = module_of(example), inputs_of(example, length)
    whole = effect(example, module, tensors, span_of(example, length))
    of_bias = bias_rounding(example, module, tensors, span_of(example, length)) if "bias" in whole else torch.zeros(())
    starts = sorted({0, 1, length // 2, length - 1} & set(range(length)))
    for start in starts:
        end = length if start else max(1, length - 2)
        x, query = (tensor[..., start:end, :] for tensor in tensors[:2])
        for key_start in {0, start}:
            keys = tensors[2][..., key_start:end, :]
            step = effect(example, module, (x, query, keys), span_of(example, end - start, start, end, key_start))
            for name, part in step.items():
                full = whole[name]
                want = {
                    "key": full[..., key_start:end, :],
                    "bias": full[..., start:end, :end],
                }.get(name, full[..., start:end, :])
                message = f"{name} of positions {start} to {end - 1}, new keys from {key_start} on, are not those of the whole"
                if name == "bias":
                    bound = of_bias[..., start:end, :end]
                else:
                    bound = rounding(example, length, part, want) if part.numel() else torch.zeros(())
                worst = max(worst, example.within(message, part, want, bound, name))
    return worst


def _reaches(example: LawExample) -> None:
    limit = example.entry.max_len(example.options)
    module = module_of(example)
    if limit is None:
        far = 2**16 if reach(example.subject, example.options, example.at) is None else 0
        if far:
            done = effect(example, module, inputs_of(example, 2), span_of(example, 2, far, key_start=far, keys=far + 2))
            for name, tensor in done.items():
                example.finite(f"{name} at position {far}", tensor)
        return
    if not isinstance(limit, int) or limit < 1:
        raise example.broken(f"`max_len` must be a whole number from 1, or None; it is {limit!r}")
    effect(example, module, inputs_of(example, 1), span_of(example, 1, limit - 1))
    for queries, offset in ((1, limit), (min(limit, 3) + 1, limit - min(limit, 3))):
        call = inputs_of(example, queries)
        message = f"{queries} tokens from position {offset} on exceed `max_len` {limit} and must raise InputError"

        def beyond(call: Any = call, queries: int = queries, offset: int = offset) -> None:
            effect(example, module, call, span_of(example, queries, offset))

        example.refuses(message, InputError, beyond)


def _flops(example: LawExample) -> None:
    entry, length, batch = example.entry, example.at["length"], example.at["batch"]
    site, options = site_of(example.subject, example.at), example.options
    counts = [
        entry.flops(options, site, *sizes)
        for sizes in ((batch, length, length), (batch + 1, length, length), (batch, length + 1, length + 1))
    ]
    if any(not isinstance(count, int) or count < 0 for count in counts) or counts[0] > min(counts[1:]):
        raise example.broken(f"`flops` must be whole numbers from 0 that grow with the batch and the length; it gives {counts}")
    module, tensors = module_of(example), inputs_of(example, length)
    with FlopCounterMode(display=False) as counter:
        effect(example, module, tensors, span_of(example, length))
    if counter.get_total_flops() > counts[0]:
        raise example.broken(f"torch counts {counter.get_total_flops()} operations in one call, its entry declares {counts[0]}")


def _acts(example: LawExample) -> None:
    length = example.at["length"]
    module, (x, query, key) = module_of(example), inputs_of(example, length)
    span = span_of(example, length)
    turn = [1, 0, *range(2, length)]
    done = effect(example, module, (x, query, key), span)
    moved = effect(example, module, (x[:, turn], query[:, :, turn], key[:, :, turn]), span)
    message = "exchanging two tokens changes nothing: the positions do not act on {}"
    places = {"embeddings": "the embeddings", "query": "the queries", "key": "the keys", "bias": "the scores"}
    for name, before in done.items():
        turned = before[:, turn] if name == "embeddings" else before[:, :, turn]
        example.differs(message.format(places[name]), moved[name], turned[..., turn] if name == "bias" else turned)


FLAT = ("float32",)
LAWS = (
    Law("declaration",
        "build gives the declared weights and nothing else; `unsupported` gives reasons in words; what it accepts can be built",
        always, _draw_any, _declaration, dtypes=FLAT),
    Law("outputs", "shapes, dtypes, kinds as declared; finite; inputs unchanged; no state between calls", acts_somewhere, draw,
        _outputs, SHRINKS),
    Law("layouts", "any strides give the same numbers", acts_somewhere, draw, _layouts, SHRINKS),
    Law("batch_rows", "R12: a batch row does not depend on the others, bit for bit", acts_somewhere, at_least(2, "batch"),
        _rows,
        SHRINKS | {"batch": 2}),
    Law("chunks", "R20: positions offset .. offset + n give the same in a call of their own", acts_somewhere, draw,
        _chunks, SHRINKS),
    Law("max_len", "positions up to max_len work; the next one raises InputError", acts_somewhere, draw, _reaches,
        SHRINKS, FLAT),
    Law("flops", "`flops` grows with the sizes and covers what torch counts", acts_somewhere, draw, _flops, SHRINKS, FLAT),
    Law("acts", "R35: exchanging two tokens changes everything that the scheme acts on", acts_somewhere, at_least(3,
        "length"), _acts,
        SHRINKS | {"length": 3}, FLAT),
)  # fmt: skip


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
    message = f"{left} hidden tokens before the others change {{}}, but `counts_padding` is false"
    if counts:
        if all(torch.equal(got, want) for _, got, want, _ in pairs):
            raise example.broken(f"`counts_padding` is true, but {left} hidden tokens before the others change nothing")
        return worst
    for name, got, want, bound in pairs:
        worst = max(worst, example.within(message.format(name), got, want, bound, name))
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
        message = f"hidden tokens between the visible ones of batch row {row} shift them, but `counts_padding` is false"
        worst = max(worst, example.within(message, seen, want, rounding(example, length, seen, want), "embeddings"))
    return worst


def _uncounted_embeddings(subject: PartUnderTest, options: Any) -> bool:
    return "embeddings" in subject.entry.acts and not subject.entry.counts_padding(options)


PADDING_LAWS = (
    Law("counts_padding", "R17: `counts_padding` says whether hidden tokens before the others change them", acts_somewhere,
        _draw_padded, _pads, SHRINKS | {"left": 1}),
    Law("hidden_between", "R17: if padding does not count, hidden tokens between others do not count either",
        _uncounted_embeddings, draw, _scattered, SHRINKS, FLAT),
)  # fmt: skip
