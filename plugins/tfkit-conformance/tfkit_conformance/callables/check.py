"""Checks a plain attention function: no plugin, and no type of tfkit in the author's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ..finding import Finding
from ..report import CheckResult, ConformanceReport
from ..resolve import known_dtypes, missing_device
from ..suite.conformance import check_backend
from ..suite.runner import Event
from .adaptor import STRIDES, FunctionUnderTest
from .locate import check_features, check_form, signature_named
from .probe import SIZES, Probe, probe
from .signature import Signature
from .terms import authored

ARGUMENTS = "arguments"


def function_under_test(
    function: Callable[..., Any],
    signature: str | Signature,
    *,
    supports: Iterable[str] = (),
    dtypes: Iterable[str] = ("float32",),
    device: str = "cpu",
    name: str = "",
) -> FunctionUnderTest:
    """A plain function as the suite calls it.

    Args:
        function: an attention function.
        signature: its form, by name or as a `Signature`.
        supports: features of the signature.
        dtypes: of query, key and value.
        device: "cpu", "cuda" or "cuda:1".
        name: in reports; by default the function's own.

    Returns:
        The function under test; its `subject` is what `replay` and `check_backend` take.

    Raises:
        InputError: there is no such signature, feature or dtype, or the function cannot be called in this form.
    """
    form = signature_named(signature)
    named = name or f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"
    asked = check_features(supports, (*form.features, STRIDES), form.name)
    made = FunctionUnderTest(named, function, form, asked, tuple(sorted(known_dtypes(dtypes))), device)
    check_form(named, function, form, made.render(SIZES.inputs()).calls[0])
    return made


def check_callable(
    function: Callable[..., Any],
    signature: str | Signature,
    *,
    supports: Iterable[str] | None = None,
    profile: str = "quick",
    device: str = "cpu",
    dtypes: Iterable[str] | None = None,
    seed: int = 0,
    name: str = "",
    limit: float = 60.0,
    stop_at_first: bool = False,
    event: Event = lambda check, case: None,
) -> ConformanceReport:
    """Checks an attention function against the float64 reference, by the suite of attention backends.

    Args:
        function: an attention function.
        signature: its form: "sdpa", "flash_attn", "flash_attn_varlen", "huggingface", "xformers", "additive_mask", "numpy", or
            a `Signature`.
        supports: features of the signature, such as ["causal", "gqa"]; by default, tiny calls find them.
        profile: "quick", "standard" or "deep".
        device: "cpu", "cuda" or "cuda:1".
        dtypes: of query, key and value; by default those that it takes.
        seed: of the drawn cases.
        name: in reports; by default the function's own.
        limit: seconds that one example may take.
        stop_at_first: end the run at the first finding, and do not shrink it.
        event: called with the check and the case before each example.

    Returns:
        The report. Its `raise_for_failures` fails a test; its `function` has signature, features and what the calls found.

    Raises:
        InputError: there is no such signature, feature or dtype, or the function cannot be called in this form.
    """
    asked = None if supports is None else tuple(supports)
    wanted = None if dtypes is None else tuple(sorted(known_dtypes(dtypes)))
    made = function_under_test(function, signature, supports=asked or (), device=device, name=name)
    found = Probe(made) if missing_device(device) else probe(made.declared(()), asked, wanted)
    chosen = None if profile != "quick" else [each for each in found.function.dtypes if each in ("float32", "bfloat16")]
    report = check_backend(
        found.function.subject, profile=profile, dtypes=chosen or found.function.dtypes, seed=seed, limit=limit,
        stop_at_first=stop_at_first, event=event,
    )  # fmt: skip
    return with_probe(report, found, probed=asked is None)


def with_probe(report: ConformanceReport, found: Probe, probed: bool) -> ConformanceReport:
    """The report in the author's terms, with what the probe found."""
    function, form = found.function, found.function.signature
    ignored = [
        Finding(
            ARGUMENTS, "A3", f"takes {name} and ignores it: the output is the same without it",
            case=case.as_data(), failed=1, examples=len(found.function.supports),
        )
        for name, case in found.ignored.items()
    ]  # fmt: skip
    check = CheckResult(
        ARGUMENTS, "A3", "no argument that it takes is ignored", "failed" if ignored else "passed", len(function.supports)
    )
    right = function.supports - found.wrong.keys()
    return replace(
        report,
        checks=(check, *report.checks) if function.supports else report.checks,
        findings=tuple(authored(function, each) for each in (*ignored, *report.findings)),
        function={
            "signature": form.name, "definition": form.definition, "supports": sorted(function.supports), "probed": probed,
            "refused": found.refused, "wrong": found.wrong,
            "declaration": f"--signature {form.name} --supports {','.join(sorted(right))}",
            "head_dim": str(function.head_dim), "length": str(function.length),
        },
    )  # fmt: skip
