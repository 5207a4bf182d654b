"""Checks a declaration before a call is made: no unknown names, no empty promises."""

from __future__ import annotations

from collections.abc import Iterator

from tfkit.inspection import BIAS_KINDS, MASK_TERMS
from tfkit.plugin import Capabilities, Range

from ..attention.case import DTYPES


def nonsense(can: Capabilities) -> Iterator[str]:
    """Every statement of the declaration that cannot be meant, in words."""
    if not can.devices:
        yield "`devices` is empty: it runs nowhere"
    if not can.dtypes:
        yield "`dtypes` is empty: it takes no dtype"
    for dtype in sorted(can.dtypes - set(DTYPES)):
        yield f"`dtypes` names {dtype}; attention is evaluated in {', '.join(DTYPES)}"
    for name, allowed in (("head_dim", can.head_dim), ("query_length", can.query_length), ("key_length", can.key_length)):
        yield from _range(name, allowed)
    for term in sorted(can.mask_terms - set(MASK_TERMS)):
        yield f"`mask_terms` names {term}; the terms are {', '.join(MASK_TERMS)}"
    for kind in sorted(can.bias_kinds - set(BIAS_KINDS)):
        yield f"`bias_kinds` names {kind}; the kinds are {', '.join(BIAS_KINDS)}"
    for kind in sorted(can.bias_gradient - can.bias_kinds):
        yield f"`bias_gradient` names {kind}, which is not among its `bias_kinds`"
    if can.bias_gradient and not can.backward:
        yield "`bias_gradient` is declared without `backward`"
    if can.double_backward and not can.backward:
        yield "`double_backward` is declared without `backward`"
    if can.deterministic_backward and not can.backward:
        yield "`deterministic_backward` is declared without `backward`"
    if can.tensor_offset and not ({"causal", "window"} & can.mask_terms or {"linear", "distance"} & can.bias_kinds):
        yield "`tensor_offset` is declared, but no mask term and no bias that reads an offset"
    if not can.scores:
        yield "`scores` is empty: it computes no score function"


def _range(name: str, allowed: Range | None) -> Iterator[str]:
    if allowed is None:
        yield f"`{name}` is not declared, so no call is accepted"
        return
    if allowed.multiple < 1 or allowed.minimum < 1:
        yield f"`{name}` is {allowed}: minimum and multiple are at least 1"
        return
    first = allowed.minimum + (-allowed.minimum) % allowed.multiple
    if allowed.maximum is not None and first > allowed.maximum:
        yield f"`{name}` is {allowed}: no number is in it"
