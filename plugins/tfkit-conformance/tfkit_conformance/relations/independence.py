"""R12, R19 and R23 at fixed shapes: a number reaches only those rows that see it, and no other changes by a single bit.

keys                      a row depends only on the keys that it sees: not on later keys, other segments, ...
queries, heads, batch rows   are independent of each other
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention.evaluated import Call, Evaluated
from .call_parts import repeats
from .fitting import NO_CAUSAL, ONE_BATCH_ROW, ONE_HEAD, ONE_KEY, ONE_QUERY, both, causal, lacks, larger, own_memory, segmented
from .paired_calls import identical, leaf_copies, outcome
from .poison import large, poisoned, unmoved
from .relation import Relation


def _rows_that_see_none(visible: Tensor, keys: Tensor) -> Tensor:
    """(B,H,Q): the queries that see none of the keys (B,G,K)."""
    group_size = visible.shape[1] // keys.shape[1]
    return ~(visible & keys.repeat_interleave(group_size, 1)[:, :, None]).any(-1)


def _unreached(check: str, evaluated: Evaluated, keys: Tensor, because: str) -> None:
    rows = _rows_that_see_none(evaluated.visible, keys)
    unmoved(check, evaluated, keys, rows, torch.zeros_like(keys), because)


def _later_keys(evaluated: Evaluated) -> None:
    case = evaluated.case
    first = 1 + case.seed % max(1, case.K - 1)
    keys = torch.zeros(case.B, case.G, case.K, dtype=torch.bool)
    keys[:, :, first:] = True
    _unreached("later_keys", evaluated, keys, f"changed when keys from {first} on, all later than that query, were replaced")


def _unseen_keys(evaluated: Evaluated) -> None:
    case = evaluated.case
    draw = torch.Generator().manual_seed(case.seed + 6)
    for share in (0.5, 1 / case.K):
        keys = torch.rand(case.B, case.G, case.K, generator=draw) < share
        _unreached("unseen_keys", evaluated, keys, "changed when keys that this query does not see were replaced")


def _other_segments(evaluated: Evaluated) -> None:
    case, mask = evaluated.case, evaluated.inputs.mask
    segments = mask.key_segments
    assert segments is not None
    last = segments == segments.amax(1, keepdim=True)
    keys = last.cpu()[:, None].expand(case.B, case.G, case.K)
    _unreached("other_segments", evaluated, keys, "changed when the keys of another segment were replaced")


def _one(size: int, evaluated: Evaluated) -> tuple[int, Tensor]:
    """One of `size` places, and True at that place."""
    place = evaluated.case.seed % size
    return place, torch.arange(size) == place


def _other_queries(evaluated: Evaluated) -> None:
    row, chosen = _one(evaluated.case.Q, evaluated)
    size = min(64.0, large(evaluated, evaluated.inputs.key, evaluated.case.D))
    tensors = {"query": _with_rows(evaluated.inputs.query, chosen[:, None], size)}
    _untouched("other_queries", evaluated, tensors, 2, ~chosen, f"changed when query row {row} was replaced")


def _other_batch_rows(evaluated: Evaluated) -> None:
    case = evaluated.case
    row, chosen = _one(case.B, evaluated)
    tensors = poisoned(evaluated, chosen[:, None, None].expand(case.B, case.G, case.K))
    tensors["query"] = _with_rows(evaluated.inputs.query, chosen[:, None, None, None], 1.0)
    _untouched("other_batch_rows", evaluated, tensors, 0, ~chosen, f"changed when batch row {row} was replaced")


def _other_heads(evaluated: Evaluated) -> None:
    case = evaluated.case
    group, chosen = _one(case.G, evaluated)
    tensors = poisoned(evaluated, chosen[None, :, None].expand(case.B, case.G, case.K))
    _untouched("other_heads", evaluated, tensors, 1, ~chosen, f"changed when key/value head {group} was replaced")


def _with_rows(tensor: Tensor, rows: Tensor, number: float) -> Tensor:
    return tensor.detach().where(~rows.to(tensor.device), number)


def _untouched(check: str, before: Call, tensors: dict[str, Tensor], axis: int, kept: Tensor, because: str) -> None:
    """Raises Violation unless all results at the kept places along an axis stay the same, bit for bit, with other tensors."""
    results = outcome(Call(before.subject, leaf_copies(before.inputs, **tensors), before.grad_output))
    for name, tensor in outcome(before).items():
        shared = name == "gradient of bias" or (axis == 2 and name in ("gradient of key", "gradient of value"))
        if shared or not repeats(before)(name):
            continue
        chosen = kept.repeat_interleave(tensor.shape[axis] // len(kept)).to(tensor.device)
        chosen = chosen.view([-1 if dim == axis else 1 for dim in range(tensor.dim())])
        identical(check, name, results[name].where(chosen, 0.0), tensor.where(chosen, 0.0), because)


INDEPENDENCE = (
    Relation(
        "later_keys", "R19", "Under a causal mask, a row does not change with later keys.", "exact",
        _later_keys, rule="A4", adapt=both(own_memory, causal), voided_by=(NO_CAUSAL, ONE_KEY),
    ),
    Relation(
        "unseen_keys", "R2", "A row does not change with keys that it does not see.", "exact",
        _unseen_keys, rule="A6", adapt=own_memory,
    ),
    Relation(
        "other_segments", "R23", "A row does not change with the keys of another segment.", "exact",
        _other_segments, rule="A4",
        adapt=both(own_memory, segmented),
        voided_by=(lacks("segments"),),
    ),
    Relation(
        "other_queries", "R12", "A row does not change with other queries.", "exact",
        _other_queries, adapt=own_memory, voided_by=(ONE_QUERY,),
    ),
    Relation(
        "other_heads", "R12", "A head does not change with other key/value heads.", "exact",
        _other_heads, rule="A1", adapt=own_memory, voided_by=(ONE_HEAD,),
    ),
    Relation(
        "other_batch_rows", "R12", "A batch row does not change with other batch rows.", "exact",
        _other_batch_rows, adapt=both(own_memory, larger), voided_by=(ONE_BATCH_ROW,),
    ),
)  # fmt: skip
