"""Checks an int8 product by its laws."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tfkit import Diagnostic, InputError

from ..finding import Finding, Violation
from ..profile import profile_of
from ..report import CheckResult, ConformanceReport, Status
from ..resolve import versions
from .laws import LAWS, Make, ProductLaw

SEEDS = {"quick": 2, "standard": 10, "deep": 100}
"""Drawn cases of each shape by profile."""
RULE = "int8"


def check_product(
    make: Make,
    *,
    levels: int = 127,
    weight_levels: int = 127,
    profile: str = "quick",
    seed: int = 0,
    name: str = "",
    checks: Iterable[str] | None = None,
) -> ConformanceReport:
    """Checks a linear map that rounds weights and activations to integers.

    Args:
        make: called with a weight (out, in) and a bias (out,) or None, both float32; returns a function from rows (N, in) to
            (N, out), float32.
        levels: largest integer of an activation.
        weight_levels: largest integer of a weight.
        profile: how many drawn cases: "quick", "standard" or "deep".
        seed: of the cases.
        name: in reports; by default that of the function.
        checks: names of laws, if not all.

    Returns:
        The report: verdict, checks, and the first violation of each law that does not hold.

    Raises:
        InputError: there is no such law or profile, or a number of levels is not from 1 to 127.
    """
    for argument, value in (("levels", levels), ("weight_levels", weight_levels)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 127:
            raise InputError(Diagnostic("TFK094", f"{argument} is {value!r}", "it is a whole number from 1 to 127"))
    known, asked = [law.name for law in LAWS], tuple(checks or ())
    if unknown := [check for check in asked if check not in known]:
        raise InputError(Diagnostic("TFK094", f"there is no law `{unknown[0]}`", f"laws: {', '.join(known)}"))
    chosen, started = profile_of(profile).name, time.perf_counter()
    results, findings = [], []
    for law in LAWS:
        if not asked or law.name in asked:
            result, found = _evaluated(law, make, levels, weight_levels, range(seed, seed + SEEDS[chosen]))
            results.append(result)
            findings += found
    return ConformanceReport(
        "product", name or getattr(make, "__qualname__", type(make).__name__), "", {}, "cpu", ("float32",), chosen, seed,
        versions("cpu"), tuple(results), tuple(findings), seconds=round(time.perf_counter() - started, 2),
    )  # fmt: skip


def _evaluated(law: ProductLaw, make: Make, levels: int, weight_levels: int, seeds: range) -> tuple[CheckResult, list[Finding]]:
    started, examples, worst, found = time.perf_counter(), 0, None, list[Finding]()
    for case in (case for seed in seeds for case in law.cases(make, levels, weight_levels, seed)):
        examples += 1
        try:
            share = law.evaluate(case)
            worst = share if worst is None or share is None else max(worst, share)
        except Violation as violation:
            found = [Finding(law.name, RULE, violation.message, examples=examples, **violation.numbers)]
        except Exception as reason:  # whatever the author's function raises is the answer
            message = f"raised {type(reason).__name__}: {reason} ({case.shape})"
            found = [Finding(law.name, RULE, message, examples=examples)]
        if found:
            break
    status: Status = "failed" if found else "passed"
    seconds = round(time.perf_counter() - started, 3)
    return CheckResult(law.name, RULE, law.rule, status, examples, worst, seconds), found
