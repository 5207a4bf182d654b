"""The output of a row depends on that row alone, not on the other rows or on padding.

    R11   batch rows in another order give their outputs in that order
    R12   each row alone gives what it gives among others
    R16   more padding on the right changes nothing that is real
    R17   more padding on the left changes nothing that is real; void for inputs whose positions count padding (sinusoidal and
          learned positions with `count: all`) and for memories that are read with positions

All up to rounding (`tfkit_conformance.verification.rounding`): a matrix product may take another path for another shape.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.plugin.model_parts import InputRule

from .expected import expected_sites, mixes_positions, node_of, tokens_of
from .model_under_test import ModelUnderTest
from .recording import run
from .rounding import agree
from .row import NotApplicable

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
    return agree("batch", after, want, subject.stick, f"rows in the order {order.tolist()}")


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
        worst = max(worst, agree("batch", after, want, subject.stick, f"row {row} alone"))
    return worst


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
        worst = max(worst, agree("padding", after, subject.baseline, subject.stick, words, subject.shown()))
    if not evaluated:
        raise NotApplicable("; ".join(reasons.values()))
    return worst


def _cut(subject: ModelUnderTest, node: str, name: str, tensor: Tensor, left: bool) -> Tensor:
    """A node's output without the added positions."""
    if tokens_of(subject.graph, node_of(node)) != name:
        return tensor
    length = subject.baseline[node].shape[1]
    return tensor[:, -length:] if left else tensor[:, :length]
