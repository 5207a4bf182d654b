"""Reads a case from JSON data and checks it before a tensor is drawn: what each field may hold, how the fields fit together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from tfkit import Diagnostic, InputError
from tfkit.inspection import SCORE_SETTINGS

from .case import DTYPES, Case
from .elements import GRAD_LAYOUTS, LAYOUTS, REGIMES

MOST_ELEMENTS = 2**32
"""In one tensor of a call: 32 GiB in float64, the dtype of the reference."""

Test = Callable[[Any], bool]


def case_of(data: object) -> Case:
    """Reads a case from JSON data, for instance from `Finding.case`.

    Args:
        data: a mapping with fields of `Case`.

    Returns:
        The case; fields that are not given have their defaults.

    Raises:
        InputError: a field is unknown or invalid, or the fields do not fit together.
    """
    if not isinstance(data, Mapping):
        raise not_a_case(f"a case is a mapping, not {type(data).__name__}")
    known = {field.name for field in fields(Case)}
    for name in data:
        if name not in known:
            raise not_a_case(f"a case has no field `{name}`")
    fields_of: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    case = Case(**fields_of)
    for reason in invalid_fields(case):
        raise not_a_case(reason)
    return case


def not_a_case(reason: str) -> InputError:
    """The error for data that is no stored case."""
    return InputError(
        Diagnostic("TFK095", f"this is no stored case: {reason}", "replay the `case` of a finding in a conformance report")
    )


def invalid_fields(case: Case) -> Iterator[str]:
    """Describes every field with an invalid value; combinations are checked only where each field is valid."""
    wrong = [
        f"`{name}` is {getattr(case, name)!r}; expected {due}"
        for name, (due, fits) in FIELDS.items()
        if not fits(getattr(case, name))
    ]
    yield from wrong or _invalid_combinations(case)


def _invalid_combinations(case: Case) -> Iterator[str]:
    if case.H % case.G:
        yield f"H {case.H} is no multiple of G {case.G}"
    for name in ("offset", "key_lengths", "query_lengths"):
        rows = getattr(case, name)
        if isinstance(rows, tuple) and len(rows) != case.B:
            yield f"`{name}` has {len(rows)} numbers for {case.B} batch rows"
    if case.offset is None and (case.causal or case.window is not None or case.bias in ("linear", "distance")):
        yield "causal, a window and a bias by distance need an `offset`"

    largest = case.B * case.H * max(case.Q * case.K, case.Q * case.D, case.K * case.D, case.Q * case.V, case.K * case.V)
    if largest > MOST_ELEMENTS:
        yield f"its tensors would have {largest} elements, more than {MOST_ELEMENTS}"


def whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**62


def number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def integers(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(whole, value))


def one_of(names: tuple[str, ...]) -> tuple[str, Test]:
    return f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names


def optional(rule: tuple[str, Test]) -> tuple[str, Test]:
    due, fits = rule
    return due, lambda value: value is None or fits(value)


SIZE: tuple[str, Test] = ("a whole number from 1 up", lambda value: whole(value) and value >= 1)
WHOLE: tuple[str, Test] = ("a whole number", whole)
SWITCH: tuple[str, Test] = ("true or false", lambda value: isinstance(value, bool))
AXES: tuple[str, Test] = ("axes out of BHQK", lambda value: isinstance(value, str) and set(value) <= set("BHQK."))
ROWS: tuple[str, Test] = ("a whole number for each batch row", integers)
NUMBER: tuple[str, Test] = ("a number", number)
POSITIVE: tuple[str, Test] = ("a number above 0", lambda value: number(value) and value > 0)

FIELDS: dict[str, tuple[str, Test]] = {
    **dict.fromkeys(("B", "H", "G", "Q", "K", "D", "V", "bias_values"), SIZE),
    **dict.fromkeys(("causal", "shared_lengths", "bias_gradient", "lse", "weights", "gradients"), SWITCH),
    "window": ("two whole numbers from 0 up, or null for an open side", lambda value: value is None or _window(value)),
    "offset": ("a whole number, or one for each batch row", lambda value: value is None or whole(value) or integers(value)),
    "key_lengths": optional(ROWS),
    "query_lengths": optional(ROWS),
    "key_visible": optional(one_of(("coins", "left", "right"))),
    "segments": optional(SIZE),
    "segment_pattern": one_of(("coins", "sorted")),
    "visible": optional(AXES),
    "visible_pattern": one_of(("coins", "blocks", "gap", "prefix", "triangle")),
    "bias": optional(one_of(("dense", "linear", "distance"))),
    "bias_axes": AXES,
    "bias_low": WHOLE,
    "bias_dtype": one_of(("float32", "query")),
    **{setting.name: optional(POSITIVE if setting.positive else NUMBER) for setting in SCORE_SETTINGS},
    "scale": optional(NUMBER),
    "dropout": ("a probability below 1", lambda value: number(value) and 0 <= value < 1),
    "regime": one_of(REGIMES),
    "layout": one_of(LAYOUTS),
    "grad_layout": one_of(GRAD_LAYOUTS),
    "seed": WHOLE,
    "name": ("a text", lambda value: isinstance(value, str)),
    "dtype": one_of(tuple(DTYPES)),
}
"""Every field: the expected value in words, and its test."""


def _window(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(side is None or (whole(side) and side >= 0) for side in value)
