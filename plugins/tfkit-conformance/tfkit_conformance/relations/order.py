"""R9 to R15, R27: what attention does not read the order of, and how a call may be split.

layouts            strides are no numbers: any layout gives the same
heads, batch rows  permuted in, permuted out; one alone gives what it gives among others
keys               a sum over keys has no order, and a key that occurs twice counts as exp(S + ln 2)
features           q . k has no order, and value features are independent
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.elements import LAYOUTS, REPEATING
from ..attention.evaluated import Evaluated
from .call_parts import Piece, agree, taken, wide
from .fitting import NO_GROUPS, ONE_BATCH_ROW, ONE_HEAD, READS_POSITIONS, larger, undeclared, without_positions
from .relation import Relation, rewritten

MOST_ROWS = 8
"""So many rows of a large batch are called alone, and the last one."""


def _order(evaluated: Evaluated, size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(evaluated.case.seed + 7))


def _layouts(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    current = evaluated.case.layout
    others = [layout for layout in LAYOUTS if layout not in (current, *REPEATING)]
    return [Piece(leaves, layout=others[evaluated.case.seed % len(others)])]


def _heads_written_out(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    group_size = evaluated.case.H // evaluated.case.G
    return [
        Piece(
            replace(
                leaves, key=leaves.key.repeat_interleave(group_size, 1), value=leaves.value.repeat_interleave(group_size, 1)
            )
        )
    ]


def _heads_permuted(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    groups = _order(evaluated, evaluated.case.G)
    group_size = evaluated.case.H // evaluated.case.G
    heads = (groups[:, None] * group_size + torch.arange(group_size)).flatten()
    return [Piece(taken(leaves, groups=groups), pick=lambda tensor: tensor[:, heads.to(tensor.device)])]


def _batch_permuted(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    order = _order(evaluated, evaluated.case.B)
    return [Piece(taken(leaves, batch=order), pick=lambda tensor: tensor[order.to(tensor.device)])]


def _batch_split(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    def one(row: int) -> Piece:
        return Piece(taken(leaves, batch=torch.tensor([row])), pick=lambda tensor: tensor[row : row + 1], row=row)

    B = evaluated.case.B
    return [one(row) for row in sorted({*range(0, B, -(-B // MOST_ROWS)), B - 1})]


def _keys_permuted(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    return [Piece(taken(leaves, keys=_order(evaluated, evaluated.case.K)))]


def _keys_twice(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    keys = torch.arange(evaluated.case.K).repeat(2)
    return [Piece(taken(leaves, keys=keys), lse=lambda lse: lse + math.log(2.0))]


def _features_permuted(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    order = _order(evaluated, evaluated.case.D).to(leaves.query.device)
    return [Piece(replace(leaves, query=leaves.query[..., order], key=leaves.key[..., order]))]


def _value_features_permuted(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    order = _order(evaluated, evaluated.case.V)

    def pick(tensor: Tensor) -> Tensor:
        return tensor[..., order.to(tensor.device)] if tensor.dim() == 4 else tensor

    return [Piece(replace(leaves, value=leaves.value[..., order.to(leaves.value.device)]), pick=pick)]


def _shared_heads(case: Case, subject: BackendUnderTest) -> Case:
    """The case with query heads that share a key/value head."""
    if case.G != case.H or not subject.capabilities.grouped_queries:
        return case
    return replace(case, G=1) if case.H > 1 else replace(case, H=2, G=1)


def _batch_invariant(evaluated: Evaluated) -> None:
    because = "differs when its batch row is alone, although batch_invariant is declared"
    agree("batch_invariant", evaluated, partial(_batch_split, evaluated), because, exact=True)


ORDER = (
    rewritten("layouts", "R9", "Any strides are accepted and give the same.", "when its tensors lie in memory in another way",
              _layouts, rule="A1"),
    rewritten("heads_written_out", "R10", "Key/value heads repeated for every query head give the same.",
              "when every query head has its own copy of its key/value head", _heads_written_out, rule="A1",
              adapt=_shared_heads, voided_by=(NO_GROUPS,)),
    rewritten("heads_permuted", "R11", "Key/value heads in another order, with their query heads, give the same.",
              "when heads are permuted", _heads_permuted, rule="A1", voided_by=(ONE_HEAD,)),
    rewritten("batch_permuted", "R11", "Batch rows in another order give the same.", "when batch rows are permuted",
              _batch_permuted, adapt=larger, voided_by=(ONE_BATCH_ROW,)),
    rewritten("batch_split", "R12", "A batch row alone gives what it gives among others.", "when its batch row is alone",
              _batch_split, adapt=larger, voided_by=(ONE_BATCH_ROW,)),
    Relation("batch_invariant", "R12", "A batch row alone gives what it gives among others, bit for bit.", "capability",
             _batch_invariant, adapt=larger, voided_by=(undeclared("batch_invariant"), ONE_BATCH_ROW),
             calls=lambda evaluated: _batch_split(evaluated, wide(evaluated.inputs))),
    rewritten("keys_permuted", "R13", "Keys in another order give the same.", "when keys are permuted",
              _keys_permuted, adapt=without_positions, voided_by=(READS_POSITIONS,)),
    rewritten("features_permuted", "R14", "Query and key features in another order give the same.",
              "when the features of queries and keys are permuted", _features_permuted),
    rewritten("value_features_permuted", "R15", "Value features in another order give output features in that order.",
              "when the features of values are permuted", _value_features_permuted),
    rewritten("keys_twice", "R27", "Every key twice gives the same, and a log-sum-exp that is ln 2 larger.",
              "when every key is doubled", _keys_twice, adapt=without_positions, voided_by=(READS_POSITIONS,)),
)  # fmt: skip
