"""R35: a model distinguishes the order of tokens only through its position schemes.

With the causal limit and the windows taken off a copy of the model, a stack without positions is permutation equivariant:
tokens in another order give outputs in that order, up to rounding. A stack with positions must not be, or no scheme acts.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tfkit import Model
from tfkit.inspection import Stack
from tfkit.plugin.model_parts import MultiHeadAttention

from ..finding import Violation
from .batch import draw
from .comparison import close
from .expected import mixes_positions, schemes_at, stacks, tokens_of
from .model_under_test import ModelUnderTest
from .recording import run
from .rounding import copied
from .row import NotApplicable


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
        want, got, limit = before[node.name][:, order], after[node.name], subject.stick.tolerance(node.name)
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
