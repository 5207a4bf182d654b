"""The output of a row depends on that row alone, not on the other rows or on padding.

    R11   batch rows in another order give their outputs in that order
    R12   each row alone gives what it gives among others; packed rows, whose documents give what they give alone
    R16   more padding on the right changes nothing that is real
    R17   more padding on the left changes nothing that is real; void for inputs whose positions count padding (sinusoidal and
          learned positions with `count: all`) and for memories that are read with positions

All up to rounding (`tfkit_conformance.verification.rounding`): a matrix product may take another path for another shape.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tfkit import Model
from tfkit.inspection import Stack
from tfkit.plugin.model_parts import FeatureRule, InputRule, MultiHeadAttention

from ..finding import Violation
from .batch import draw
from .expected import expected_sites, mixes_positions, node_of, schemes_at, stacks, tokens_of
from .model_under_test import ModelUnderTest
from .recording import as_recorded, run
from .rounding import agree, copied
from .row import NotApplicable, close, same
from .truth import Truth

MORE = 3


def batch_permutation(subject: ModelUnderTest) -> float:
    """R11."""
    rows = subject.batch.size
    if rows < 2:
        raise NotApplicable("a batch of one row")
    order = torch.randperm(rows, generator=subject.generator())
    if bool((order == torch.arange(rows)).all()):
        order = order.roll(1)
    after = run(subject.model, subject.batch.rows(order))
    want = {name: _rows(subject, name, tensor, order) for name, tensor in subject.baseline.items()}
    return agree("batch", after, want, subject.yardstick, f"rows in the order {order.tolist()}")


def batch_split(subject: ModelUnderTest) -> float:
    """R12."""
    rows = subject.batch.size
    if rows < 2:
        raise NotApplicable("a batch of one row")
    worst = 0.0
    for row in range(rows):
        index = torch.tensor([row])
        want = {name: _rows(subject, name, tensor, index) for name, tensor in subject.baseline.items()}
        after = run(subject.model, subject.batch.rows(index))
        worst = max(worst, agree("batch", after, want, subject.yardstick, f"row {row} alone"))
    return worst


def packed_rows(subject: ModelUnderTest) -> float:
    """R12: two rows without padding, one after the other in one row."""
    refused = [reason for (argument, _), reason in subject.model.plan.refused.items() if argument == "documents"]
    if subject.batch.images or any(isinstance(rule, FeatureRule) for rule in subject.model.plan.inputs.values()):
        refused.append("an input has no token ids")
    if refused:
        raise NotApplicable(refused[0])
    lengths = {name: ids.shape[1] for name, ids in subject.batch.ids.items()}
    batch = draw(subject.model, lengths, 2, subject.seed + 6, subject.device, padding=False)
    want, packed = run(subject.model, batch), run(subject.model, batch.packed())
    after = {name: tensor.reshape(2, -1, *tensor.shape[2:]) for name, tensor in packed.items()}
    return agree("batch", after, want, subject.yardstick, "two rows as the documents of one row (`documents`)")


def _rows(subject: ModelUnderTest, node: str, tensor: Tensor, index: Tensor) -> Tensor:
    """Some rows of a node's output; of the similarities of two batches, the columns of these rows too."""
    return tensor[index][:, index] if subject.graph.nodes[node_of(node)].signal.axes == ("B", "B") else tensor[index]


def right_padding(subject: ModelUnderTest) -> float:
    """R16, input by input."""
    return _padded(subject, left=False, reasons={})


def left_padding(subject: ModelUnderTest) -> float:
    """R17, input by input, where positions allow it."""
    reasons = {
        name: f"`{name}` has positions that count padding"
        for name, rule in subject.model.plan.inputs.items()
        if isinstance(rule, InputRule) and rule.counts_padding
    }
    for node in subject.graph.nodes.values():
        name = tokens_of(subject.graph, node.name)
        if name is not None and mixes_positions(subject.graph, node.name):
            reasons[name] = f"`{node.name}` combines or counts the positions of `{name}`, padding included"
    for expected in expected_sites(subject.graph).values():
        if expected.memory is not None and expected.scheme is not None:
            for tokens in (expected.tokens, tokens_of(subject.graph, expected.memory)):
                if tokens is not None:
                    reasons[tokens] = f"{expected.name} has positions between `{tokens}` and another sequence"
    return _padded(subject, left=True, reasons=reasons)


def _padded(subject: ModelUnderTest, left: bool, reasons: dict[str, str]) -> float:
    worst, evaluated = 0.0, False
    reasons = dict(reasons)
    for name, ids in subject.batch.ids.items():
        limit = subject.limits.get(name)
        if limit is not None and ids.shape[1] + MORE > limit:
            reasons.setdefault(name, f"`{name}` is as long as its position table, {limit}")
        if name in reasons:
            continue
        evaluated = True
        batch = subject.batch.padded(name, MORE, left, subject.pad(name))
        after = {node: _cut(subject, node, name, tensor, left) for node, tensor in run(subject.model, batch).items()}
        words = f"{MORE} more positions of padding on the {'left' if left else 'right'} of `{name}`"
        worst = max(worst, agree("padding", after, subject.baseline, subject.yardstick, words, subject.shown()))
    if not evaluated:
        raise NotApplicable("; ".join(reasons.values()))
    return worst


def _cut(subject: ModelUnderTest, node: str, name: str, tensor: Tensor, left: bool) -> Tensor:
    """A node's output without the added positions."""
    if tokens_of(subject.graph, node_of(node)) != name:
        return tensor
    length = subject.baseline[node].shape[1]
    return tensor[:, -length:] if left else tensor[:, :length]


def order_of_tokens(subject: ModelUnderTest) -> float | None:
    """Every stack, with and without positions. Gives the largest error over tolerance of those without."""
    free = unlimited(subject.model)
    lengths = {name: ids.shape[1] for name, ids in subject.batch.ids.items()}
    rows = subject.batch.size
    batch = draw(subject.model, lengths, rows, subject.seed + 5, subject.device, padding=False)
    before = run(free, batch)
    worst: float | None = None
    evaluated = False
    for node in stacks(subject.graph):
        tokens = tokens_of(subject.graph, node.name)
        if tokens is None or lengths[tokens] < 2 or mixes_positions(subject.graph, node.name):
            continue
        order = torch.randperm(lengths[tokens], generator=subject.generator(1)).to(subject.device)
        after = run(free, batch.positions(tokens, order))
        schemes = schemes_at(subject.graph, node.name)
        words = f"`{node.name}` without its causal limit, with the tokens of `{tokens}` in another order"
        want, got, limit = before[node.name][:, order], after[node.name], subject.yardstick.tolerance(node.name)
        if not schemes:
            worst = max(worst or 0.0, close("order", got, want, limit, words, f"`{node.name}`"))
        elif subject.half:
            continue  # rounding may hide that positions act; float64 decides
        elif not _differs(got, want, limit):
            names = ", ".join(dict.fromkeys(scheme.kind for scheme in schemes))
            raise Violation("order", f"{words}, gives the same outputs in that order: {names} does not act")
        evaluated = True
    if not evaluated:
        raise NotApplicable("no stack over two positions or more of which it can be decided in this dtype")
    return worst


def _differs(got: Tensor, want: Tensor, limit: float) -> bool:
    return float((got - want).abs().max()) > limit


def unlimited(model: Model) -> Model:
    """A copy of a model in which every token sees every other."""
    free: Model = copied(model)
    for module in free.modules():
        if isinstance(module, Stack):
            module.causal = False
        elif isinstance(module, MultiHeadAttention):
            module.config = replace(module.config, window=None)
    return free


FIRST_CAPACITY = 64
"""The positions for which a cache has room at first, unless a caller asks for more."""


@torch.no_grad()
def deterministic(subject: ModelUnderTest) -> None:
    """R1, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(subject.seed + 99)
        again = run(subject.model, subject.batch)
        plain = subject.model(**subject.batch.call(dtype=subject.model.dtype))
    for name, tensor in subject.baseline.items():
        same("repeat", again[name], tensor, "the same call in evaluation mode must give the same bits", f"`{name}`")
    for name, tensor in as_recorded(plain).items():
        words = "a model without hooks must give the bits that it gives with them"
        same("repeat", tensor, subject.baseline[name], words, f"`{name}`")


def against_exact(subject: ModelUnderTest) -> float:
    """Float64, padding given by masks."""
    return _agrees(subject, subject.measured.truth, "padding given by masks")


def by_lengths(subject: ModelUnderTest) -> float:
    """Float64, padding given by lengths."""
    return _agrees(subject, subject.measured.long, "padding given by lengths", lengths=True)


def long_sequences(subject: ModelUnderTest) -> float:
    """Float64, more than 64 positions."""
    longest = max((ids.shape[1] for ids in subject.measured.long.batch.ids.values()), default=0)
    worst = _agrees(subject, subject.measured.long, f"sequences of up to {longest} positions")
    if longest <= FIRST_CAPACITY:
        raise NotApplicable(f"no input has more than {longest} positions" if longest else "no input is a sequence", worst)
    return worst


def many_rows(subject: ModelUnderTest) -> float:
    """Float64, many rows."""
    return _agrees(subject, subject.measured.many, "a batch of many rows")


def _agrees(subject: ModelUnderTest, truth: Truth, words: str, lengths: bool = False) -> float:
    got = run(subject.model, truth.batch, lengths)
    told = f"{words}, against the plain evaluation in float64"
    return agree("float64", got, truth.outputs, truth.yardstick, told, subject.shown(truth.batch))
