"""R19, R20, R23: a call split along its lengths; offsets give each part its positions (rule A4).

prefix      under causality, the first t rows need only the keys up to the last of their positions
cache       queries in chunks, each at its own offset, against the keys that are there by then: incremental decoding
packed      segments laid end to end give what the sequences give alone
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from tfkit.plugin import AttentionInputs

from ..attention.evaluated import Call, Evaluated
from .call_parts import Piece, agree, every, rows_of, taken, wide
from .fitting import NO_CAUSAL, ONE_QUERY, causal, lacks, segmented
from .relation import Relation, rewritten


def _prefix(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    case, offset = evaluated.case, evaluated.inputs.mask.offset
    assert isinstance(offset, int)
    rows = range(_first_rows(evaluated))
    return [Piece(taken(leaves, queries=rows, keys=range(min(case.K, offset + len(rows)))), pick=rows_of(rows))]


def _first_rows(evaluated: Evaluated) -> int:
    return 1 + evaluated.case.seed % max(1, evaluated.case.Q - 1)


def _run_prefix(evaluated: Evaluated) -> float:
    """The whole call's gradients are those of its first rows alone: no gradient comes in at the others."""
    rows = _first_rows(evaluated)
    sent = evaluated.grad_output.clone()
    sent[:, :, rows:] = 0
    whole = Call(evaluated.subject, evaluated.inputs, sent)
    because = f"differs from that of the first {rows} queries alone, with the keys they see, by more than both bounds"
    return agree("causal_prefix", whole, lambda leaves: _prefix(evaluated, leaves), because)


def _chunks(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    case, mask = evaluated.case, evaluated.inputs.mask
    size = min((1, 2, 3, 5)[case.seed % 4], -(-case.Q // 2))
    pieces = []
    for rows in every(max(size, -(-case.Q // 8)), case.Q):
        there = case.K
        if mask.causal and isinstance(mask.offset, int):
            there = min(max(mask.offset + rows.stop, 1), case.K)
        pieces.append(Piece(taken(leaves, queries=rows, keys=range(there)), pick=rows_of(rows)))
    return pieces


@dataclass(frozen=True)
class _Packed:
    whole: AttentionInputs
    queries: tuple[range, ...]
    keys: tuple[range, ...]


def _packed(evaluated: Evaluated, inputs: AttentionInputs) -> _Packed:
    """The call with its queries and keys as two segments end to end, or one where there is but one query or key."""
    case, device = evaluated.case, inputs.query.device
    numbers = min(2, case.Q, case.K)
    queries = (range(case.Q // numbers), range(case.Q // numbers, case.Q))[-numbers:]
    keys = (range(case.K // numbers), range(case.K // numbers, case.K))[-numbers:]
    if numbers == 1:
        queries, keys = (range(case.Q),), (range(case.K),)

    def segments(parts: tuple[range, ...]) -> torch.Tensor:
        row = torch.cat([torch.full((len(part),), number) for number, part in enumerate(parts)])
        return row.expand(case.B, -1).contiguous().to(device)

    mask = replace(inputs.mask, query_segments=segments(queries), key_segments=segments(keys))
    return _Packed(replace(inputs, mask=mask), queries, keys)


def _sequences(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    packed = _packed(evaluated, leaves)
    alone = replace(leaves, mask=replace(leaves.mask, query_segments=None, key_segments=None))
    return [
        Piece(taken(alone, queries=rows, keys=keys), pick=rows_of(rows))
        for rows, keys in zip(packed.queries, packed.keys, strict=True)
    ]


def _run_packed(evaluated: Evaluated) -> float:
    whole = Call(evaluated.subject, _packed(evaluated, evaluated.inputs).whole, evaluated.grad_output)
    because = "of two segments laid end to end differs from that sequence alone by more than both bounds"
    return agree("packed_segments", whole, lambda leaves: _sequences(evaluated, leaves), because)


CUTTING = (
    Relation(
        "causal_prefix", "R19", "Under a causal mask, the first rows do not depend on later queries and keys.", "bound",
        _run_prefix, rule="A4", adapt=causal, voided_by=(NO_CAUSAL, ONE_QUERY),
        calls=lambda evaluated: _prefix(evaluated, wide(evaluated.inputs)),
    ),
    rewritten(
        "chunks", "R20", "Queries in chunks, each at its own offset with the keys that are cached by then, give the same.",
        "from the same query in a chunk of its own, at its own offset", _chunks, rule="A4", voided_by=(ONE_QUERY,),
    ),
    Relation(
        "packed_segments", "R23", "Segments laid end to end give what the sequences give alone.", "bound",
        _run_packed, rule="A4", adapt=segmented, voided_by=(lacks("segments"),),
        calls=lambda evaluated: _sequences(evaluated, wide(evaluated.inputs)),
    ),
)  # fmt: skip
