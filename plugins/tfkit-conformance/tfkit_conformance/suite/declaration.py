"""Checks a declaration before a call is made: no unknown names, no empty promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from tfkit.inspection import BIAS_KINDS, FEATURES, MASK_TERMS, SCORE_SETTINGS
from tfkit.plugin import AttentionInputs, AttentionOutput, Capabilities, Range

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import DTYPES, Case
from ..finding import Violation


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


def undeclared(subject: BackendUnderTest, dtype: str) -> Iterator[tuple[str, Case]]:
    """Calls that differ by one undeclared feature from one that the declaration accepts: the feature in words, the call."""
    can, plain = subject.capabilities, plain_case(subject, dtype)
    offset = {"offset": 0}
    terms: dict[str, dict[str, Any]] = {
        "causal": {"causal": True, **offset},
        "window": {"window": (1, 1), **offset},
        "key_lengths": {"key_lengths": (plain.K - 1,) * plain.B},
        "query_lengths": {"query_lengths": (plain.Q - 1,) * plain.B},
        "key_visible": {"key_visible": "coins"},
        "segments": {"segments": 2},
        "visible": {"visible": "BHQK"},
    }
    for term in MASK_TERMS:
        if term not in can.mask_terms:
            yield f"mask term {term}", replace(plain, **terms[term])
    for kind in BIAS_KINDS:
        if kind not in can.bias_kinds:
            yield f"a {kind} bias", replace(plain, bias=kind, offset=0)
        elif kind not in can.bias_gradient and can.backward:
            yield f"the gradient of a {kind} bias", replace(plain, bias=kind, offset=0, bias_gradient=True, gradients=True)
    changes: dict[str, dict[str, Any]] = {
        "dropout": {"dropout": 0.5},
        "lse": {"lse": True},
        "weights": {"weights": True},
        "grouped": {"G": 1, "H": 2 * plain.G},
        **{setting.name: {setting.name: setting.examples[0]} for setting in SCORE_SETTINGS},
    }
    reading = next((term for term in ("causal", "window") if term in can.mask_terms), None)
    if reading is not None:
        changes["tensor_offset"] = {**terms[reading], "offset": tuple(range(plain.B))}
    for feature in FEATURES:
        if feature.name in changes and not feature.declared(can):
            yield feature.words, replace(plain, **changes[feature.name])
    if not can.value_dim_differs:
        yield "a value dim other than head_dim", replace(plain, V=2 * plain.D)
    for other in DTYPES:
        if other not in can.dtypes:
            yield f"dtype {other}", replace(plain, dtype=other)
    if can.head_dim is not None:
        for D in (plain.D + 1, 2 * (can.head_dim.maximum or 2**30)):
            if D not in can.head_dim and D < 2000:
                yield f"head_dim {D}", replace(plain, D=D, V=D)


def check_refusals(
    subject: BackendUnderTest, dtype: str, event: Callable[[str, Case | None], None] = lambda check, case: None
) -> int:
    """Makes every such call; gives their number. `event` is called before each. Raises Violation where one is answered."""
    count = 0
    for feature, case in undeclared(subject, dtype):
        count += 1
        event("refusals", case)
        _expect_refusal(subject, feature, case.inputs(subject.device))
    if subject.capabilities.scores != {"*"} and "*" not in subject.capabilities.scores:
        count += 1
        inputs = replace(plain_case(subject, dtype).inputs(subject.device), score=lambda query, key: query @ key.mT)
        _expect_refusal(subject, "a score function other than the dot product", inputs)
    return count


def _expect_refusal(subject: BackendUnderTest, feature: str, inputs: AttentionInputs) -> None:
    try:
        answer = subject.call(inputs)
        if feature.startswith("the gradient"):
            torch.autograd.backward(answer.output.sum())
    except Violation:  # out of time
        raise
    except Exception:  # any exception is a refusal
        return
    asked = {"the log-sum-exp": "lse", "attention weights": "weights"}
    if isinstance(answer, AttentionOutput) and feature in asked and getattr(answer, asked[feature]) is None:
        return
    raise Violation(
        "refusals",
        f"answers a call with {feature}, which it does not declare: declare it if it is right, refuse it otherwise "
        "(`tfkit.plugin.require_capabilities`)",
    )


def plain_case(subject: BackendUnderTest, dtype: str) -> Case:
    """A small call that the declaration accepts."""
    can = subject.capabilities
    heads = 2
    for D in (8, 16, 32, 64, 128, 256):
        for Q, K in ((3, 5), (1, 5), (16, 32), (64, 64), (128, 128), (128, 256)):
            case = Case(B=2, H=heads, G=heads, Q=Q, K=K, D=D, V=D, dtype=dtype)
            if subject.accepts(case.request(subject.device)):
                return case
    D, Q, K = ((allowed.minimum + (-allowed.minimum) % allowed.multiple) if allowed else 1
               for allowed in (can.head_dim, can.query_length, can.key_length))  # fmt: skip
    return Case(B=2, H=heads, G=heads, Q=Q, K=K, D=D, V=D, dtype=dtype)
