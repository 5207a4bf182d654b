"""R2, R3, R16 to R18, R29: what is hidden does not matter (rules A5 and A6).

keys that no query sees   other numbers in them change nothing, bit for bit; their gradients are exactly 0
more hidden keys          at either end of the cache: the same, within both bounds
queries that see no key   give 0 and pass no gradient, for any query and any incoming gradient, infinities included
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, DenseBias

from ..attention.evaluated import Call, Evaluated
from ..differences import at_element, first_of
from ..finding import Violation
from .call_parts import Piece, repeats
from .fitting import (
    NO_FULLY_MASKED_ROW,
    NO_GRADIENTS,
    NOTHING_HIDDEN,
    both,
    hidden_keys,
    hiding_keys,
    own_memory,
    with_fully_masked_rows,
)
from .paired_calls import format_element, identical, leaf_copies, lying_as, outcome
from .poison import large, unmoved
from .relation import Feature, Relation, rewritten

MORE = 3
"""How many hidden keys are added."""


def _poisoned_hidden_keys(evaluated: Evaluated) -> None:
    hidden = hidden_keys(evaluated.visible, evaluated.case.G)
    everywhere = torch.ones(evaluated.case.B, evaluated.case.H, evaluated.case.Q, dtype=torch.bool)
    check, live = "poisoned_hidden_keys", ~hidden
    many = "changed when keys that no query sees were replaced by large numbers"
    try:
        unmoved(check, evaluated, hidden, everywhere, live, many)
    except Violation:
        for b, g, j in hidden.nonzero().tolist():
            alone = torch.zeros_like(hidden)
            alone[b, g, j] = True
            where = f"key {j} of batch row {b}, key/value head {g}"
            unmoved(check, evaluated, alone, everywhere, live, f"changed when {where}, which no query sees, was replaced")
        raise


def _hidden_keys_get_no_gradient(evaluated: Evaluated) -> None:
    hidden = hidden_keys(evaluated.visible, evaluated.case.G)[..., None]
    for name in ("key", "value"):
        if name in evaluated.gradients:
            gradient = evaluated.gradients[name]
            because = "is not exactly 0 although no query sees that key"
            chosen = gradient.where(hidden.to(gradient.device), 0.0)
            identical("hidden_keys_get_no_gradient", f"gradient of {name}", chosen, torch.zeros_like(chosen), because)


def _appended(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    return [Piece(_more_keys(evaluated, leaves, before=False))]


def _prepended(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
    return [Piece(_more_keys(evaluated, leaves, before=True))]


def _more_keys(evaluated: Evaluated, leaves: AttentionInputs, before: bool) -> AttentionInputs:
    """The call with `MORE` hidden keys before or after those it has; positions count on from the first key."""
    case, mask, device = evaluated.case, leaves.mask, leaves.query.device
    terms = evaluated.subject.capabilities.mask_terms
    step = MORE if before else 0

    def longer(tensor: Tensor, axis: int, filling: Tensor) -> Tensor:
        return torch.cat((filling, tensor) if before else (tensor, filling), axis)

    def filled(tensor: Tensor, axis: int, value: float) -> Tensor:
        size = list(tensor.shape)
        size[axis] = MORE
        return longer(tensor, axis, torch.full(size, value, dtype=tensor.dtype, device=device))

    lengths = None if mask.key_lengths is None else mask.key_lengths.clamp(0, case.K) + step
    key_visible = None if mask.key_visible is None else filled(mask.key_visible, 1, 0)
    segments = None if mask.key_segments is None else filled(mask.key_segments, 1, 0)
    visible = mask.visible
    if visible is not None and visible.shape[-1] > 1:
        visible = filled(visible, visible.dim() - 1, 1)
    if key_visible is None and (before or lengths is None):  # nothing hides the new keys yet
        seen = torch.ones(1, case.K, dtype=torch.bool, device=device)
        if not before and "key_lengths" in terms:
            lengths = torch.full((case.B,), case.K, device=device)
        elif "key_visible" in terms:
            key_visible = filled(seen.expand(case.B, -1), 1, 0)
        else:
            visible = filled(seen, 1, 0)[None, None] & (seen[:, :1] if visible is None else visible)
    bias = leaves.bias
    if isinstance(bias, DenseBias) and bias.values.shape[-1] > 1:
        bias = DenseBias(filled(bias.values, bias.values.dim() - 1, 1.0))
    key = filled(leaves.key, 2, large(evaluated, evaluated.inputs.query, case.D))
    value = filled(leaves.value, 2, large(evaluated, evaluated.grad_output, case.V))
    offset = None if mask.offset is None else mask.offset + step
    mask = replace(mask, offset=offset, key_lengths=lengths, key_visible=key_visible, key_segments=segments, visible=visible)
    return replace(leaves, key=key, value=value, mask=mask, bias=bias)


def _fully_masked_rows(evaluated: Evaluated) -> None:
    check = "fully_masked_rows"
    masked = ~evaluated.visible.any(-1)
    before = outcome(evaluated)
    for name in ("output", "weights", "gradient of query"):
        if name in before:
            _zero(check, name, before[name], masked, "is not 0 although that query sees no key")
    if "lse" in before:
        rows = before["lse"].where(masked.to(before["lse"].device), -torch.inf)
        identical(check, "lse", rows, torch.full_like(rows, -torch.inf), "is not -inf although that query sees no key")

    rows = masked[..., None].to(evaluated.inputs.query.device)
    query, sent = evaluated.inputs.query.detach(), evaluated.grad_output
    loud = query.where(~rows, large(evaluated, evaluated.inputs.key, evaluated.case.D))
    harmful = sent.where(~rows, torch.inf)
    harmful = harmful.where(~rows | (torch.arange(evaluated.case.V, device=rows.device) % 2 == 0), torch.nan)
    harmful = lying_as(sent, harmful)
    _same_but(check, before, Call(evaluated.subject, leaf_copies(evaluated.inputs, query=loud), sent),
              "changed when queries that see no key were replaced by large numbers")  # fmt: skip
    _same_but(check, before, Call(evaluated.subject, leaf_copies(evaluated.inputs), harmful),
              "changed when the gradient that comes in at queries that see no key became infinite or NaN")  # fmt: skip


def _same_but(check: str, before: dict[str, Tensor], call: Call, because: str) -> None:
    after = outcome(call)
    for name in filter(repeats(call), before):
        identical(check, name, after[name], before[name], because)


def _zero(check: str, name: str, tensor: Tensor, rows: Tensor, because: str) -> None:
    wrong = (tensor != 0) & rows[..., None].to(tensor.device)
    if bool(wrong.any()):
        index = first_of(wrong)
        raise at_element(check, f"{format_element(name, index)} {because}", name, index, tensor, torch.zeros_like(tensor))


_CANNOT_HIDE_LAST = Feature(
    "key_lengths, key_visible and visible are not declared",
    lambda case, subject: not {"key_lengths", "key_visible", "visible"} & subject.capabilities.mask_terms,
)
_CANNOT_HIDE_FIRST = Feature(
    "key_visible and visible are not declared",
    lambda case, subject: not {"key_visible", "visible"} & subject.capabilities.mask_terms,
)

HIDDEN = (
    Relation(
        "poisoned_hidden_keys", "R2", "Large numbers in keys that no query sees change nothing.", "exact",
        _poisoned_hidden_keys, rule="A6", adapt=both(own_memory, hiding_keys), voided_by=(NOTHING_HIDDEN,),
    ),
    Relation(
        "hidden_keys_get_no_gradient", "R3", "The gradients of keys and values that no query sees are exactly 0.", "exact",
        _hidden_keys_get_no_gradient, rule="A6", adapt=hiding_keys, voided_by=(NOTHING_HIDDEN, NO_GRADIENTS),
    ),
    rewritten(
        "appended_hidden_keys", "R16", "More hidden keys at the end change nothing.",
        "from the call with three more hidden keys at the end", _appended, rule="A6", voided_by=(_CANNOT_HIDE_LAST,),
    ),
    rewritten(
        "prepended_hidden_keys", "R17", "Left padding that moves every position changes nothing.",
        "from the call with three hidden keys before the first", _prepended, rule="A4", voided_by=(_CANNOT_HIDE_FIRST,),
    ),
    Relation(
        "fully_masked_rows", "R29",
        "A query that sees no key gives 0 and passes no gradient, for any query and any incoming gradient.",
        "exact",
        _fully_masked_rows, rule="A5", adapt=both(own_memory, with_fully_masked_rows), voided_by=(NO_FULLY_MASKED_ROW,),
    ),
)  # fmt: skip
