"""What every position scheme owes a model: the contract of `tfkit.attention.positions` and of its entry."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tfkit.attention.positions import PositionRange
from tfkit.errors import InputError
from tfkit.slots.position import USUAL_CLAIMS, PositionSite

from .declared import check_claims, check_parameters, check_reasons, check_unwritten
from .example import LawExample
from .law import Law, PartUnderTest, Structure, always
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
    rounding,
    site_of,
    span_of,
)


def _draw_any(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return draw_site(subject, options, random) if random.random() < 0.5 else {**any_site(random), "rows": random.choice((0, 9))}


def _declaration(trial: LawExample) -> None:
    entry, options, site = trial.entry, trial.options, site_of(trial.subject, trial.at)
    check_claims(trial, frozenset().union(*USUAL_CLAIMS.values()))
    reasons = entry.unsupported(options, site)
    if not check_reasons(trial, reasons):
        return
    if entry.unsupported(options, site) != reasons:
        raise trial.broken("`unsupported` answers the same question in two ways")
    module = trial.bare(site)
    declared = entry.parameters(options, site)
    check_parameters(trial, module, declared)
    tables = entry.tables(options)
    if entry.acts - {"embeddings"} and (tables == "none") == bool(declared):
        raise trial.broken(f"it has {len(declared)} parameters at attention and says that its tables belong to `{tables}`")
    if entry.acts == {"scores"} and not entry.reads_query:
        # Layers whose heads differ in width alone share one table, and are not told the width.
        narrow = PositionSite(site.width, site.heads, 0, site.rows, site.causal, site.cross)
        if [p.shape for p in entry.parameters(options, narrow)] != [p.shape for p in declared]:
            raise trial.broken("its tables depend on head_dim though its bias does not read the query")
        check_parameters(trial, trial.bare(narrow), declared)


def _outputs(trial: LawExample) -> None:
    length = trial.at["length"]
    module, tensors, span = module_of(trial), inputs_of(trial, length), span_of(trial, length)
    kept = [tensor.clone() for tensor in tensors]
    first = effect(trial, module, tensors, span).tensors()
    for name, tensor in first.items():
        trial.finite(name, tensor)
    check_unwritten(trial, kept, list(tensors))
    others = inputs_of(trial, max(1, length - 1))
    effect(trial, module, others, span_of(trial, max(1, length - 1)))
    for name, tensor in effect(trial, module, tensors, span).tensors().items():
        trial.equal(f"{name}: the same call a second time, after another one, gives something else", tensor, first[name], name)


def _limit(trial: LawExample, module: nn.Module, given: Given, span: PositionRange, name: str, *tensors: Tensor) -> Tensor:
    """How much two evaluations of one output may differ."""
    if name == "bias":
        return bias_rounding(trial, module, given, span)
    return rounding(trial, span.keys, *tensors)


def _layouts(trial: LawExample) -> float:
    length, worst = trial.at["length"], 0.0
    module, tensors, span = module_of(trial), inputs_of(trial, length), span_of(trial, length)
    dense = effect(trial, module, tensors, span).tensors()
    x, query, key = (tensor.transpose(-1, -2).contiguous().transpose(-1, -2) for tensor in tensors)
    for name, tensor in effect(trial, module, (x, query, key), span).tensors().items():
        bound = _limit(trial, module, tensors, span, name, tensor, dense[name])
        worst = max(worst, trial.within(f"{name} depends on how the input lies in memory", tensor, dense[name], bound, name))
    return worst


def _rows(trial: LawExample) -> None:
    batch, length = trial.at["batch"], trial.at["length"]
    row = int(trial.generator.initial_seed() % batch)
    module, tensors = module_of(trial), inputs_of(trial, length)
    visible = torch.rand(batch, length, generator=trial.generator).to(trial.device) < 0.7
    whole = effect(trial, module, tensors, span_of(trial, length, visible=visible)).tensors()
    others = inputs_of(trial, length)
    for other, tensor in zip(others, tensors, strict=True):
        other[row] = tensor[row]
    hidden = ~visible
    hidden[row] = visible[row]
    for name, tensor in effect(trial, module, others, span_of(trial, length, visible=hidden)).tensors().items():
        trial.equal(f"{name} of batch row {row} depends on the other rows", tensor[row], whole[name][row], name)


def _chunks(trial: LawExample) -> float:
    length, worst = trial.at["length"], 0.0
    module, tensors = module_of(trial), inputs_of(trial, length)
    whole = effect(trial, module, tensors, span_of(trial, length)).tensors()
    of_bias = bias_rounding(trial, module, tensors, span_of(trial, length)) if "bias" in whole else torch.zeros(())
    starts = sorted({0, 1, length // 2, length - 1} & set(range(length)))
    for start in starts:
        end = length if start else max(1, length - 2)
        x, query = (tensor[..., start:end, :] for tensor in tensors[:2])
        for key_start in {0, start}:
            keys = tensors[2][..., key_start:end, :]
            step = effect(trial, module, (x, query, keys), span_of(trial, end - start, start, end, key_start)).tensors()
            for name, part in step.items():
                full = whole[name]
                want = {
                    "key": full[..., key_start:end, :],
                    "bias": full[..., start:end, :end],
                }.get(name, full[..., start:end, :])
                said = f"{name} of positions {start} to {end - 1}, new keys from {key_start} on, are not those of the whole"
                if name == "bias":
                    bound = of_bias[..., start:end, :end]
                else:
                    bound = rounding(trial, length, part, want) if part.numel() else torch.zeros(())
                worst = max(worst, trial.within(said, part, want, bound, name))
    return worst


def _reaches(trial: LawExample) -> None:
    limit = trial.entry.max_len(trial.options)
    module = module_of(trial)
    if limit is None:
        far = 2**16 if reach(trial.subject, trial.options, trial.at) is None else 0
        if far:
            done = effect(trial, module, inputs_of(trial, 2), span_of(trial, 2, far, key_start=far, keys=far + 2))
            for name, tensor in done.tensors().items():
                trial.finite(f"{name} at position {far}", tensor)
        return
    if not isinstance(limit, int) or limit < 1:
        raise trial.broken(f"`max_len` must be a whole number from 1, or None; it is {limit!r}")
    effect(trial, module, inputs_of(trial, 1), span_of(trial, 1, limit - 1))
    for queries, offset in ((1, limit), (min(limit, 3) + 1, limit - min(limit, 3))):
        call = inputs_of(trial, queries)
        said = f"{queries} tokens from position {offset} on are past `max_len` {limit} and must be refused with an InputError"

        def beyond(call: Any = call, queries: int = queries, offset: int = offset) -> None:
            effect(trial, module, call, span_of(trial, queries, offset))

        trial.refuses(said, InputError, beyond)


def _flops(trial: LawExample) -> None:
    entry, length, batch = trial.entry, trial.at["length"], trial.at["batch"]
    site, options = site_of(trial.subject, trial.at), trial.options
    said = [
        entry.flops(options, site, *sizes)
        for sizes in ((batch, length, length), (batch + 1, length, length), (batch, length + 1, length + 1))
    ]
    if any(not isinstance(count, int) or count < 0 for count in said) or said[0] > min(said[1:]):
        raise trial.broken(f"`flops` must be whole numbers from 0 that grow with the batch and the length; it gives {said}")
    module, tensors = module_of(trial), inputs_of(trial, length)
    with FlopCounterMode(display=False) as counter:
        effect(trial, module, tensors, span_of(trial, length))
    if counter.get_total_flops() > said[0]:
        raise trial.broken(f"torch counts {counter.get_total_flops()} operations in one call, its entry declares {said[0]}")


def _acts(trial: LawExample) -> None:
    length = trial.at["length"]
    module, (x, query, key) = module_of(trial), inputs_of(trial, length)
    span = span_of(trial, length)
    turn = [1, 0, *range(2, length)]
    done = effect(trial, module, (x, query, key), span)
    moved = effect(trial, module, (x[:, turn], query[:, :, turn], key[:, :, turn]), span)
    said = "two tokens in exchanged places are treated as if nothing had happened: the positions do not act on {}"
    if done.embed is not None and moved.embed is not None:
        trial.differs(said.format("the embeddings"), moved.embed, done.embed[:, turn])
    if done.query is not None and moved.query is not None and done.key is not None and moved.key is not None:
        trial.differs(said.format("the queries"), moved.query, done.query[:, :, turn])
        trial.differs(said.format("the keys"), moved.key, done.key[:, :, turn])
    if done.bias is not None and moved.bias is not None:
        trial.differs(said.format("the scores"), moved.bias, done.bias[:, :, turn][:, :, :, turn])


FLAT = ("float32",)
LAWS = (
    Law(
        "declaration",
        "build gives the declared weights and nothing else; `unsupported` gives reasons in words; what it accepts can be built",
        always,
        _draw_any,
        _declaration,
        dtypes=FLAT,
    ),
    Law(
        "outputs",
        "shapes, dtypes, kinds as declared; finite; nothing written; no state between calls",
        acts_somewhere,
        draw,
        _outputs,
        SHRINKS,
    ),
    Law("layouts", "any strides give the same numbers", acts_somewhere, draw, _layouts, SHRINKS),
    Law(
        "batch_rows",
        "R12: a batch row is its own business, bit for bit",
        acts_somewhere,
        at_least(2, "batch"),
        _rows,
        SHRINKS | {"batch": 2},
    ),
    Law(
        "chunks",
        "R20: positions offset .. offset + n in a call of their own are those of the whole",
        acts_somewhere,
        draw,
        _chunks,
        SHRINKS,
    ),
    Law(
        "max_len",
        "positions up to max_len work, the next is refused with an InputError",
        acts_somewhere,
        draw,
        _reaches,
        SHRINKS,
        FLAT,
    ),
    Law("flops", "`flops` grows with the sizes and covers what torch counts", acts_somewhere, draw, _flops, SHRINKS, FLAT),
    Law(
        "acts",
        "R35: exchanging two tokens is noticed in every place it acts on",
        acts_somewhere,
        at_least(3, "length"),
        _acts,
        SHRINKS | {"length": 3},
        FLAT,
    ),
)
