"""R9 to R15, R27: what attention does not read the order of, and how a call may be split.

layouts            strides are no numbers: any layout gives the same
heads, batch rows  permuted in, permuted out; one alone gives what it gives among others
keys               a sum over keys has no order, and a key that stands twice counts as exp(S + ln 2)
features           q . k has no order, and value features stand for themselves
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.elements import LAYOUTS
from ..attention.evaluated import Evaluated
from .call_parts import Piece, agree, rewriting, taken
from .fitting import NO_GROUPS, ONE_BATCH_ROW, READS_POSITIONS, larger, without_positions
from .relation import Feature, Relation


def _order(evaluated: Evaluated, size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(evaluated.case.seed + 7))


def _layouts(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    own = evaluated.case.layout
    others = [layout for layout in LAYOUTS if layout not in (own, "expanded")]
    return [Piece(leaves, layout=others[evaluated.case.seed % len(others)])]


def _heads_written_out(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    each = evaluated.case.H // evaluated.case.G
    return [Piece(replace(leaves, key=leaves.key.repeat_interleave(each, 1), value=leaves.value.repeat_interleave(each, 1)))]


def _heads_permuted(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    groups = _order(evaluated, evaluated.case.G)
    each = evaluated.case.H // evaluated.case.G
    heads = (groups[:, None] * each + torch.arange(each)).flatten()
    return [Piece(taken(leaves, groups=groups), pick=lambda tensor: tensor[:, heads.to(tensor.device)])]


def _batch_permuted(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    order = _order(evaluated, evaluated.case.B)
    return [Piece(taken(leaves, batch=order), pick=lambda tensor: tensor[order.to(tensor.device)])]


def _batch_split(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    def one(row: int) -> Piece:
        return Piece(taken(leaves, batch=torch.tensor([row])), pick=lambda tensor: tensor[row : row + 1])

    return [one(row) for row in range(evaluated.case.B)]


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


def _moved(name: str, number: str, summary: str, because: str, adapt: Callable[[Case, BackendUnderTest], Case],
           voided_by: tuple[Feature, ...], parts: Callable[[Evaluated, AttentionInputs], list[Piece]],
           rule: str = "") -> Relation:  # fmt: skip
    run, calls = rewriting(name, parts, f"differs by more than both bounds {because}")
    return Relation(name, number, summary, "bound", run, rule, adapt, voided_by, calls)


def _as_declared(
    check: str, parts: Callable[[Evaluated, AttentionInputs], list[Piece]], because: str
) -> Callable[[Evaluated], float | None]:
    """Bit for bit where `batch_invariant` is declared."""

    def run(evaluated: Evaluated) -> float | None:
        agree(
            check,
            evaluated,
            lambda leaves: parts(evaluated, leaves),
            f"{because}, although batch_invariant is declared",
            exact=True,
        )
        return None

    return run


def _plain(case: Case, subject: BackendUnderTest) -> Case:
    return case


_NOT_INVARIANT = Feature("batch_invariant is not declared", lambda case, subject: not subject.capabilities.batch_invariant)

ORDER = (
    _moved("layouts", "R9", "Any strides are accepted and give the same.", "when its tensors lie in memory in another way",
           _plain, (), _layouts, "A1"),
    _moved("heads_written_out", "R10", "Key/value heads written out for every query head give the same.",
           "when every query head has its own copy of its key/value head", _shared_heads, (NO_GROUPS,),
           _heads_written_out, "A1"),
    _moved("heads_permuted", "R11", "Key/value heads in another order, with their query heads, give the same.",
           "when heads are permuted", _plain, (Feature("one key/value head", lambda case, subject: case.G == 1),),
           _heads_permuted, "A1"),
    _moved("batch_permuted", "R11", "Batch rows in another order give the same.", "when batch rows are permuted",
           larger, (ONE_BATCH_ROW,), _batch_permuted),
    _moved("batch_split", "R12", "A batch row alone gives what it gives among others.", "when its batch row is alone",
           larger, (ONE_BATCH_ROW,), _batch_split),
    Relation("batch_invariant", "R12", "A batch row alone gives what it gives among others, bit for bit.", "capability",
             _as_declared("batch_invariant", _batch_split, "differs when its batch row is alone"), adapt=larger,
             voided_by=(_NOT_INVARIANT, ONE_BATCH_ROW), calls=rewriting("batch_invariant", _batch_split, "")[1]),
    _moved("keys_permuted", "R13", "Keys in another order give the same.", "when keys are permuted",
           without_positions, (READS_POSITIONS,), _keys_permuted),
    _moved("features_permuted", "R14", "Query and key features in another order give the same.",
           "when the features of queries and keys are permuted", _plain, (), _features_permuted),
    _moved("value_features_permuted", "R15", "Value features in another order give them in that order.",
           "when the features of values are permuted", _plain, (), _value_features_permuted),
    _moved("keys_twice", "R27", "Every key twice gives the same, and ln 2 more log-sum-exp.",
           "when every key is doubled", without_positions, (READS_POSITIONS,), _keys_twice),
)  # fmt: skip
