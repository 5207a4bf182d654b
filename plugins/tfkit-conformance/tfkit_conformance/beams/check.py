"""Checks a beam top-k by its laws."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tfkit.plugin import BeamTopK
from tfkit.plugin.model_parts import load

from ..finding import Finding
from ..law_evaluation import chosen_laws, evaluated
from ..profile import profile_of
from ..report import ConformanceReport
from ..resolve import versions
from .laws import LAWS, Greedy, Select

SEEDS = {"quick": 2, "standard": 10, "deep": 100}
"""Drawn cases of each shape by profile."""


def check_beam_top_k(
    select: Select | BeamTopK,
    *,
    greedy: Greedy | None = None,
    profile: str = "quick",
    seed: int = 0,
    name: str = "",
    checks: Iterable[str] | None = None,
) -> ConformanceReport:
    """Checks a function that selects the best continuations of a beam search.

    Args:
        select: the function, as `tfkit.plugin.BeamTopK` describes it, or the entry of one.
        greedy: the function for greedy decoding; by default that of the entry, if it has one. Without it its law is left out.
        profile: how many drawn cases: "quick", "standard" or "deep".
        seed: of the cases.
        name: in reports; by default that of the function or of the entry.
        checks: names of laws, if not all.

    Returns:
        The report: verdict, checks, and the first violation of each law that does not hold.

    Raises:
        InputError: there is no such law or profile.
    """
    if isinstance(select, BeamTopK) and greedy is None and select.greedy is not None:
        greedy = load(select.greedy)
    function: Select = load(select.select) if isinstance(select, BeamTopK) else select
    name = name or (select.name if isinstance(select, BeamTopK) else getattr(select, "__qualname__", type(select).__name__))
    laws = chosen_laws(LAWS, checks)
    chosen, started = profile_of(profile).name, time.perf_counter()
    results, findings = [], list[Finding]()
    for law in laws:
        called = greedy if law.greedy else function
        if called is None:
            continue
        cases = (case for number in range(seed, seed + SEEDS[chosen]) for case in law.cases(called, number))
        result, law_findings = evaluated(law.name, law.rule, "float32", cases, law.evaluate)
        results.append(result)
        findings += law_findings
    return ConformanceReport(
        "beam top-k", name, "", {}, "cpu", ("float32",), chosen, seed, versions("cpu"),
        tuple(results), tuple(findings), seconds=round(time.perf_counter() - started, 2),
    )  # fmt: skip
