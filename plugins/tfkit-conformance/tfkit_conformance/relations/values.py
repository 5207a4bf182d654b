"""R24 to R28: what the weights add up to. A row that sees a key has weights of sum 1, and only differences of scores count.

    keys + w            scores of a row change by one number: the same output, lse + scale q . w
    values + c          output + c in every row that sees a key
    all values equal    that value                    one live key         its value

Keys and values here are small whole numbers, so that k + w and v + c are exact in every dtype.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.evaluated import Call, Evaluated
from .call_parts import Piece
from .fitting import BENT_SCORES, whole_numbers
from .paired_calls import leaf_copies, outcome, within
from .relation import Relation, rewritten


def _whole(evaluated: Evaluated, size: int) -> Tensor:
    draw = torch.Generator().manual_seed(evaluated.case.seed + 8)
    return torch.randint(-2, 3, (size,), generator=draw).to(evaluated.inputs.query.device, torch.float64)


def _keys_moved(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    moved = _whole(evaluated, evaluated.case.D)
    added = leaves.scale * (leaves.query.detach() @ moved)

    def lse(before: Tensor) -> Tensor:
        return before + added.to(before.device)

    return [Piece(replace(leaves, key=leaves.key + moved), lse=lse)]


def _values_moved(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    moved = _whole(evaluated, evaluated.case.V)
    live = evaluated.visible.any(-1, keepdim=True).double()

    def output(before: Tensor) -> Tensor:
        return before + live.to(before.device) * moved.to(before.device)

    return [Piece(replace(leaves, value=leaves.value + moved), output=output)]


def _equal_values(evaluated: Evaluated) -> float:
    """The output is the value; it does not depend on queries and keys, whose gradients are 0."""
    check, inputs = "equal_values", evaluated.inputs
    value = inputs.value.detach()[:1, :, :1].expand(inputs.value.shape)
    call = Call(evaluated.subject, leaf_copies(inputs, value=value), evaluated.grad_output)
    group_size = evaluated.case.H // evaluated.case.G
    want = value[:, :, :1].repeat_interleave(group_size, 1).cpu().double() * evaluated.visible.any(-1, keepdim=True)
    results = outcome(call)
    because = "is not the value, by more than its bound, although all values of its head are equal"
    worst = within(check, "output", results["output"], want, call.bounds.output, because)
    for name in ("query", "key"):
        if name in call.bounds.gradients and f"gradient of {name}" in results:
            gradient = results[f"gradient of {name}"]
            because = "is not 0, by more than its bound, although all values of its head are equal"
            zeros = torch.zeros_like(gradient)
            worst = max(worst, within(check, f"gradient of {name}", gradient, zeros, call.bounds.gradients[name], because))
    return worst


def _one_live_key(evaluated: Evaluated) -> float:
    """Every row that sees one key alone is that key's value."""
    visible = evaluated.visible
    alone = visible.sum(-1) == 1
    group_size = evaluated.case.H // evaluated.case.G
    value = evaluated.inputs.value.detach().cpu().double().repeat_interleave(group_size, 1)
    want = (visible.double() @ value) * alone[..., None]
    output = evaluated.output.output.detach().cpu().double() * alone[..., None]
    because = "is not the value of the only key that it sees, by more than its bound"
    return within("one_live_key", "output", output, want, evaluated.bounds.output, because)


def _one_key(case: Case, subject: BackendUnderTest) -> Case:
    """One visible key per row or batch row by a declared term; K = 1 if no term is declared."""
    near = replace(case, window=(0, 0), offset=case.offset if case.offset is not None else 0)
    first = replace(case, key_lengths=(1,) * case.B, window=None, shared_lengths=False)
    early = replace(case, causal=True, offset=0)
    for changed in (near, first, early)[case.seed % 2 :]:
        if subject.accepts(changed.request(subject.device)):
            return changed
    return replace(case, K=1, key_lengths=None, shared_lengths=False)


VALUES = (
    rewritten("keys_moved", "R24", "A vector that is added to every key changes no weight.",
              "when one vector is added to every key",
              _keys_moved, rule="A2", adapt=whole_numbers, voided_by=(BENT_SCORES,)),
    Relation("equal_values", "R25", "Where all values are equal, the output is that value.", "bound",
             _equal_values, rule="A2"),
    rewritten("values_moved", "R26", "A vector that is added to every value is added to every row that sees a key.",
              "from itself plus what is added to every value", _values_moved, rule="A2", adapt=whole_numbers),
    Relation("one_live_key", "R28", "The output of a row that sees one key is that key's value.", "bound",
             _one_live_key, rule="A4", adapt=_one_key),
)  # fmt: skip
