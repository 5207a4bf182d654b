"""What a function supports, found by tiny calls.

A feature is supported unless the function lacks the parameter or raises. One that it takes and answers wrongly counts as
supported, so that the suite fails on it: a wrong answer is no refusal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch

from tfkit.plugin import AttentionInputs, Mask, Range

from ..attention.case import Case
from ..attention.evaluated import Evaluated
from ..finding import Inconclusive, OutOfTime, Violation
from ..raised import format_exception
from ..suite.again import run_check
from .adaptor import STRIDES, FunctionUnderTest

SIZES = Case(B=2, H=3, G=3, Q=4, K=6, D=16, V=16, seed=1)
CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "causal": ({"causal": True, "offset": 0}, {"causal": True, "offset": 2}),
    "window": ({"window": (1, 0), "offset": 2}, {"window": (2, 1), "offset": 2}),
    "padding": ({"key_lengths": (4, 1)},),
    "mask": ({"visible": "BHQK"}, {"visible": "Q.K"}),
    "bias": ({"bias": "dense", "bias_dtype": "query"}, {"bias": "linear", "offset": 2}),
    "gqa": ({"H": 4, "G": 2}, {"H": 4, "G": 1}),
    "value_dim": ({"V": 32},),
    "softcap": ({"softcap": 0.75},),
    "dropout": ({"dropout": 0.5},),
    "lse": ({"lse": True},),
    "backward": ({"gradients": True},),
    "bias_backward": ({"bias": "dense", "bias_dtype": "query", "bias_gradient": True, "gradients": True},),
    STRIDES: ({"layout": "features_first"},),
}
"""The calls of each feature. Those that the signature has no words for are left out."""

CHANGES = ("causal", "window", "padding", "mask", "bias", "softcap", "dropout")
"""The features that change the output: where they do not, the function ignores them."""

PLAIN = "plain call"
"""What is wrong without any feature."""

ALSO = {"bias_backward": ("bias", "backward")}
STEPS = (1, 4, 8, 16, 32, 64, 128)
"""Multiples that kernels ask of sizes."""


@dataclass(frozen=True)
class Probe:
    """A function with all that it supports.

    Args:
        function: with features, dtypes and sizes.
        refused: why it has not the other features, by name.
        wrong: the features that it takes and answers wrongly, each with what is wrong.
        ignored: the cases whose features it takes and ignores, by feature.
    """

    function: FunctionUnderTest
    refused: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, Case] = field(default_factory=dict)


def probe(function: FunctionUnderTest, supports: Iterable[str] | None, dtypes: Iterable[str] | None) -> Probe:
    """Calls the function with every feature of its signature, or of `supports`, and every dtype of the form, or of `dtypes`."""
    form = function.signature
    sized, refused = _sized(function), dict[str, str]()
    for dtype in form.dtypes if dtypes is None else ():
        if reason := _raised(replace(sized, dtypes=(dtype,)), replace(_plain(sized), dtype=dtype)):
            refused[dtype] = reason
    if dtypes is None and "float64" in form.dtypes and "float64" not in refused and "float32" not in refused:
        double = replace(sized, dtypes=("float64",))
        if _wrong(double, replace(_plain(sized), dtype="float64")) and not _wrong(sized, _plain(sized)):
            refused["float64"] = "it computes with less precision"
    taken = tuple(dtypes) if dtypes is not None else tuple(dtype for dtype in form.dtypes if dtype not in refused)
    outcome = Probe(replace(sized, dtypes=taken or form.dtypes[:1]), refused)
    if not taken:
        return outcome
    if error := _wrong(outcome.function, _plain(outcome.function)):
        outcome = replace(outcome, wrong={PLAIN: _scale(outcome.function, _plain(outcome.function)) or error})
    for name in (*form.features, STRIDES):
        if supports is None or name in supports:
            outcome = _feature(outcome, name, requested=supports is not None)
    return outcome


def _feature(outcome: Probe, name: str, requested: bool) -> Probe:
    """With one feature more, or with the reason why not. A requested feature stays, and the suite reports why it fails."""
    function, needs = outcome.function, outcome.function.signature.needs.get(name, ())
    missing = [other for other in ALSO.get(name, ()) if other not in function.supports]
    reason = f"needs {' and '.join(missing)}" if missing else ""
    if needs and not any(map(function.takes, needs)):
        reason = f"it has no parameter {' or '.join(needs)}"
    able = function.with_features(name)
    plain = _plain(able)
    cases = [replace(plain, **fields) for fields in CASES[name]]
    cases = [case for case in cases if able.subject.accepts(case.request(able.device))]
    reason = reason or next((refusal for case in cases if (refusal := _raised(able, case))), "")
    if reason and not requested:
        return replace(outcome, refused={**outcome.refused, name: reason})
    outcome = replace(outcome, function=able)
    if reason or not cases:
        return outcome
    if name in CHANGES and (ignored := next((case for case in cases if _ignores(able, case)), None)):
        wrong = {**outcome.wrong, name: "it has no effect"}
        return replace(outcome, wrong=wrong, ignored={**outcome.ignored, name: ignored})
    if PLAIN in outcome.wrong:  # every answer is wrong, which says nothing of the feature
        return outcome
    if error := next((error for case in cases if not case.dropout and (error := _wrong(able, case))), ""):
        error = (_alignment(able, cases) if name == "causal" else "") or error
        return replace(outcome, wrong={**outcome.wrong, name: error})
    return outcome


def _plain(function: FunctionUnderTest) -> Case:
    head, step = function.head_dim.multiple, function.length.multiple
    D = -(-16 // head) * head
    Q, K = (4, 6) if step == 1 else (step, 2 * step)
    return replace(SIZES, D=D, V=D, Q=K if function.square else Q, K=K, dtype=function.dtypes[0])


def _raised(function: FunctionUnderTest, case: Case) -> str:
    """What a call raises, or that it loses the gradient; empty where it answers."""
    try:
        with function.trial(case):
            output = function.subject.call(case.inputs(function.device)).output
    except Inconclusive:
        return ""
    except OutOfTime:
        raise
    except Violation as violation:
        return violation.message
    except Exception as reason:  # any exception is a refusal
        return format_exception(reason)
    return "its output carries no gradient" if case.gradients and not output.requires_grad else ""


def _ignores(function: FunctionUnderTest, case: Case) -> bool:
    """Whether the answer is the same without mask, bias, softcap and dropout."""
    inputs = case.inputs(function.device)
    offset = inputs.mask.offset
    plain = AttentionInputs(inputs.query, inputs.key, inputs.value, Mask(offset=offset), inputs.scale)
    try:
        with torch.random.fork_rng(devices=[]), function.trial(case):
            return torch.equal(function.attend(inputs).output, function.attend(plain).output)
    except OutOfTime:
        raise
    except Exception:  # the suite says what the call raises
        return False


def _wrong(function: FunctionUnderTest, case: Case) -> str:
    try:
        with function.trial(case):
            run_check(function.subject, case)
    except OutOfTime:
        raise
    except Violation as violation:
        return violation.message
    except Inconclusive:
        pass
    except Exception as reason:
        return format_exception(reason)
    return ""


def _alignment(function: FunctionUnderTest, cases: Iterable[Case]) -> str:
    """Whether causality is right, but aligned to the other end of the keys than the form says."""
    ends = {0: "the first query to the first key (top left)", 2: "the last query to the last key (bottom right)"}
    by_offset = {case.offset: case for case in cases}
    for one, other in ((0, 2), (2, 0)):
        if one in by_offset and other in by_offset and _answers(function, by_offset[one], by_offset[other]):
            return f"it aligns {ends[other]}; the form aligns {ends[one]}"
    return ""


def _scale(function: FunctionUnderTest, case: Case) -> str:
    """Whether the answer is right for scores that are not scaled."""
    unscaled = _answers(function, case, replace(case, scale=1.0))
    return "it leaves the softmax scale out: the answer is right for a scale of 1 and not for D^-0.5" if unscaled else ""


def _answers(function: FunctionUnderTest, case: Case, other: Case) -> bool:
    """Whether the answer to a case is that of another one. False where there is none."""
    try:
        with function.trial(case):
            output = Evaluated(function.subject, case).output.output
            wanted = Evaluated(function.subject, other).reference.output
            return torch.allclose(output.double(), wanted, atol=1e-2)
    except OutOfTime:
        raise
    except Exception:  # the suite says what the call raises
        return False


def _sized(function: FunctionUnderTest) -> FunctionUnderTest:
    """With the multiples of head dim and lengths that it takes, and whether these are equal; all where a plain call always
    raises."""
    for square, length, head in product((False, True), STEPS, STEPS):
        tried = replace(
            function,
            head_dim=Range(minimum=head, multiple=head),
            length=Range(minimum=length, multiple=length),
            square=square,
        )
        odd = replace(_plain(tried), D=3 * head if head > 1 else 12, V=3 * head if head > 1 else 12)
        if not _raised(tried, replace(odd, dtype=tried.dtypes[0])):
            return tried
        if head > 1 and not _raised(tried, _plain(tried)):  # powers of two alone
            limits = Range(minimum=_plain(tried).D, multiple=_plain(tried).D)
            return replace(tried, head_dim=limits)
    return function
