"""What each field of a stored case may hold, and how the fields must fit together: told before a tensor is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .elements import GRAD_LAYOUTS, LAYOUTS, REGIMES

if TYPE_CHECKING:
    from .case import Case

MOST_ELEMENTS = 2**32
"""In one tensor of a call: 32 GiB of float64, in which it is judged."""

Test = Callable[[Any], bool]


def misfits(case: Case, dtypes: tuple[str, ...]) -> Iterator[str]:
    """Every field that holds what it must not, in words; what does not fit together only where each field is right."""
    wrong = [
        f"`{name}` is {getattr(case, name)!r} where {due} is due"
        for name, (due, fits) in {**FIELDS, "dtype": one_of(dtypes)}.items()
        if not fits(getattr(case, name))
    ]
    yield from wrong or _together(case)


def _together(case: Case) -> Iterator[str]:
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
    "visible": optional(AXES),
    "bias": optional(one_of(("dense", "linear", "distance"))),
    "bias_axes": AXES,
    "bias_low": WHOLE,
    "bias_dtype": one_of(("float32", "query")),
    "softcap": optional(POSITIVE),
    "scale": optional(("a number", number)),
    "dropout": ("a probability below 1", lambda value: number(value) and 0 <= value < 1),
    "regime": one_of(REGIMES),
    "layout": one_of(LAYOUTS),
    "grad_layout": one_of(GRAD_LAYOUTS),
    "seed": WHOLE,
    "name": ("a text", lambda value: isinstance(value, str)),
}
"""Every field but `dtype`, by what is due there."""


def _window(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(side is None or (whole(side) and side >= 0) for side in value)
