"""Checks one part of a slot by every law that applies to it (`check_part`), and one stored case again (`replay_part`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

from tfkit import Catalogue, Diagnostic, InputError, load_catalogue

from ..attention.case import DTYPES
from ..attention.case_data import not_a_case
from ..finding import Finding, Inconclusive, Raised, Violation
from ..raised import call_of, format_exception
from ..report import SUITE, CheckResult, ConformanceReport, LedgerRow
from ..resolve import require_device, versions
from ..snippets import law_snippet
from .activation import LAWS as ACTIVATION
from .cell import LAWS as CELL
from .formula import LAWS as FORMULA
from .law import Excluded, Law, LawExample, PartUnderTest, Structure, part_under_test
from .norm import LAWS as NORM
from .options import entry_of, parsed, variants
from .placement import LAWS as PLACEMENT
from .position_contract import LAWS as POSITION, PADDING_LAWS as POSITION_PADDING
from .position_numbers import CLAIM_LAWS as POSITION_CLAIMS, LAWS as POSITION_NUMBERS
from .score import LAWS as SCORE

LARGEST, MOST = 1 << 18, 1 << 32
"""The largest number of a structure, and the most that its sizes may multiply to."""
LONGEST = 100
"""The most characters of a text, and the most texts of a list."""
PLACES = ("start", "shift")
"""Numbers of a structure that are positions and no sizes."""
DRAWS = 20


def misfit(law: Law, subject: PartUnderTest, options: Any, at: Mapping[str, Any]) -> str:
    """Why a law has no case of this structure, in words; nothing where it may have one."""
    wrong = next((reason for name, value in at.items() if (reason := _wrong(name, value, law.shrinks.get(name)))), "")
    if wrong:
        return wrong
    like = _drawn(law, subject, options)
    if like is not None and any(type(at.get(name)) is not type(value) for name, value in like.items()):
        due = ", ".join(f"`{name}` ({type(value).__name__})" for name, value in sorted(like.items()))
        return f"`at` of the law `{law.name}` needs {due}"
    sizes = prod(value for name, value in at.items() if name not in PLACES and type(value) is int and value > 0)
    return f"the sizes in `at` multiply to {sizes:,}, more than {MOST:,}" if sizes > MOST else ""


def _wrong(name: str, value: Any, least: int | None) -> str:
    if isinstance(value, bool):
        return ""
    if isinstance(value, int):
        low = least if least else -LARGEST  # a size is 1 at least; an exponent is made smaller towards 0
        return "" if low <= value <= LARGEST else f"`at.{name[:40]}` is {str(value)[:40]}, not a number from {low} to {LARGEST}"
    texts = value if isinstance(value, list) else [value]
    if 0 < len(texts) <= LONGEST and all(isinstance(text, str) and 0 < len(text) <= LONGEST for text in texts):
        return ""
    return f"`at.{name[:40]}` is no whole number, truth value, short text or list of these texts"


def _drawn(law: Law, subject: PartUnderTest, options: Any) -> Structure | None:
    """A structure that the law draws; None where it draws none."""
    for seed in range(DRAWS):
        try:
            return law.draw(subject, options, Random(seed))
        except Excluded:
            return None
        except Exception:  # none from this seed, or the part fails when it is asked: then it is evaluated as the case says
            continue
    return None


LAWS: dict[str, tuple[Law, ...]] = {
    "position": (*POSITION, *POSITION_NUMBERS, *POSITION_PADDING, *POSITION_CLAIMS, *FORMULA["position"]),
    "norm": (*NORM, *FORMULA["norm"]),
    "placement": (*PLACEMENT, *FORMULA["placement"]),
    "activation": (*ACTIVATION, *FORMULA["activation"]),
    "score": (*SCORE, *FORMULA["score"]),
    "cell": (*CELL, *FORMULA["cell"]),
}
"""The laws of every slot that has some."""

Event = Callable[[str, dict[str, Any]], None]

PROFILES = {"quick": 6, "standard": 24, "deep": 120}
"""Cases of each law in each dtype."""

USUAL_DTYPES = {"quick": ("float32", "bfloat16"), "standard": ("float32", "bfloat16", "float16"), "deep": tuple(DTYPES)}
TRIES = 60


def check_part(
    slot: str,
    name_or_entry: Any,
    *,
    profile: str = "standard",
    seed: int = 0,
    device: str = "cpu",
    dtypes: Sequence[str] | None = None,
    catalogue: Catalogue | None = None,
    options: Any = None,
    event: Event = lambda law, case: None,
) -> ConformanceReport:
    """Checks a position scheme, norm, placement, activation, score function or cell by its laws.

    Args:
        slot: "position", "norm", "placement", "activation", "score" or "cell".
        name_or_entry: a name of the catalogue, or an entry.
        profile: how many cases of each law: "quick" 6, "standard" 24, "deep" 120 for each dtype.
        seed: of the drawn cases.
        device: "cpu", "cuda" or "cuda:1".
        dtypes: by default those of the profile.
        catalogue: where names are looked up; by default all that is installed.
        options: the only options to check with. By default the part's default options, and each choice of each option that is a
            flag or one of some names.
        event: called with the law and the case before each case.

    Returns:
        The report; its ledger has a row for each law.

    Raises:
        SpecError: the name is unknown, or the options are wrong.
        InputError: the slot, profile or dtype does not exist.
        BuildError: the device is missing.
    """
    if slot not in LAWS:
        raise InputError(Diagnostic("TFK073", f"there are no laws for the slot `{slot}`", f"known: {', '.join(LAWS)}"))
    dtypes = tuple(USUAL_DTYPES.get(profile, ()) if dtypes is None else dtypes)
    if profile not in PROFILES:
        raise InputError(Diagnostic("TFK073", f"there is no profile `{profile}`", f"known: {', '.join(PROFILES)}"))
    if wrong := [dtype for dtype in dtypes if dtype not in DTYPES]:
        raise InputError(Diagnostic("TFK071", f"`{wrong[0]}` is no dtype of a model", f"known: {', '.join(DTYPES)}"))
    require_device(device)
    catalogue = catalogue or load_catalogue()
    subject = part_under_test(catalogue, slot, entry_of(catalogue, slot, name_or_entry))
    chosen = variants(catalogue, subject.entry) if options is None else [parsed(catalogue, slot, subject.entry, options)]
    return evaluate(subject, chosen, options is not None, profile, seed, device, dtypes, event)


def evaluate(
    subject: PartUnderTest,
    chosen: list[Any],
    written: bool,
    profile: str,
    seed: int,
    device: str,
    dtypes: tuple[str, ...],
    event: Event = lambda law, case: None,
    stop_at_first: bool = False,
    laws: Collection[str] = (),
) -> ConformanceReport:
    """The report on a part whose code is at hand, with one or more options. A `stop_at_first` one begins with the equations,
    ends with the first violation and does not shrink it. `laws`, where there are some, are the only ones evaluated."""
    begun = time.perf_counter()
    checks: list[CheckResult] = []
    findings: list[Finding] = []
    ledger: list[LedgerRow] = []
    for law in reversed(LAWS[subject.slot]) if stop_at_first else LAWS[subject.slot]:
        if stop_at_first and findings:
            break
        if laws and law.name not in laws:
            continue
        concerned = [options for options in chosen if law.applies(subject, options)]
        if not concerned:
            continue
        law_run = _LawRun(law, subject, concerned, device, seed, max(PROFILES[profile], len(concerned)), event, stop_at_first)
        law_run.run(law.dtypes or dtypes)
        if law_run.examples or not law_run.excluded:
            checks.append(law_run.result())
        findings += law_run.findings
        ledger.append(LedgerRow("law", law.name, law_run.counts, "" if law_run.examples else law_run.excluded))
    return ConformanceReport(
        slot=subject.slot, name=str(subject.entry.name), distribution=subject.distribution,
        options=_data(chosen[0]) if written else {}, device=device, dtypes=tuple(dtypes), profile=profile, seed=seed,
        versions=versions(device), checks=tuple(checks), findings=tuple(findings),
        ledger=tuple(ledger), seconds=time.perf_counter() - begun,
    )  # fmt: skip


def replay_part(case: Any, catalogue: Catalogue | None = None) -> float | None:
    """Runs the case of a finding again on the part as it is now. Raises its Violation, or returns the largest error over its
    bound (None if the law is exact). Raises InputError if `case` is not one of this suite."""
    needed = {"suite", "slot", "name", "law", "options", "at", "dtype", "device", "seed"}
    if not isinstance(case, dict) or set(case) != needed:
        raise not_a_case(f"a case is a mapping with {', '.join(sorted(needed))}")
    if case["suite"] != SUITE:
        raise not_a_case(f"it is of suite {case['suite']!r}, this is suite {SUITE}")
    if wrong := [key for key in ("slot", "name", "law", "dtype", "device") if not isinstance(case[key], str)]:
        raise not_a_case(f"`{wrong[0]}` is no text")
    if type(case["seed"]) is not int or not 0 <= case["seed"] < 1 << 63:
        raise not_a_case("`seed` is no whole number from 0 up that fits into 64 bits")
    if not isinstance(case["options"], dict) or not isinstance(case["at"], dict):
        raise not_a_case("`options` and `at` are objects")
    law = next((law for law in LAWS.get(case["slot"], ()) if law.name == case["law"]), None)
    if law is None or case["dtype"] not in DTYPES:
        raise not_a_case(f"no law `{case['law']}` of the slot `{case['slot']}` has cases in {case['dtype']}")
    catalogue = catalogue or load_catalogue()
    entry = entry_of(catalogue, case["slot"], case["name"])
    options = parsed(catalogue, case["slot"], entry, case["options"])
    subject = part_under_test(catalogue, case["slot"], entry)
    if reason := misfit(law, subject, options, case["at"]):
        raise not_a_case(reason)
    return retry(subject, law, options, case)


def retry(subject: PartUnderTest, law: Law, options: Any, case: dict[str, Any]) -> float | None:
    """One case; any exception of the part is a violation of the law."""
    example = LawExample(law.name, subject, options, case["at"], case["dtype"], case["device"], case["seed"])
    try:
        return law.evaluate(example)
    except (Violation, Inconclusive):
        raise
    except Exception as reason:  # any exception of a part is reported with the call that raised it
        call = f"`{call_of(reason)}` " if call_of(reason) else ""
        raise Raised(law.name, f"{call}raised {format_exception(reason)} for a call that it declares") from reason


def _data(options: Any) -> dict[str, Any]:
    return dict(options.model_dump(exclude_none=True))


@dataclass
class _LawRun:
    """One law over its cases, dtype by dtype; the first violation is shrunk and reported, the others are counted."""

    law: Law
    subject: PartUnderTest
    chosen: list[Any]
    device: str
    seed: int
    cases: int
    event: Event
    stop_at_first: bool
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    worst: float | None = None
    failed: int = 0
    examples: int = 0
    nothing: str = ""
    excluded: str = ""
    seconds: float = 0.0

    def run(self, dtypes: tuple[str, ...]) -> None:
        begun = time.perf_counter()
        first: tuple[dict[str, Any], Any, Violation] | None = None
        for dtype in dtypes:
            self.counts[dtype] = 0
            for options, case in self._drawn(dtype):
                self.event(self.law.name, case)
                try:
                    share = retry(self.subject, self.law, options, case)
                except Inconclusive as reason:
                    self.nothing = str(reason)
                    continue
                except Violation as violation:
                    self.failed += 1
                    first = first or (case, options, violation)
                else:
                    self.worst = share if self.worst is None or (share or 0.0) > self.worst else self.worst
                self.examples += 1
                self.counts[dtype] += 1
        if first is not None:
            self.findings.append(self._finding(*first))
        self.seconds = time.perf_counter() - begun

    def _drawn(self, dtype: str) -> Iterator[tuple[Any, dict[str, Any]]]:
        for number in range(self.cases):
            options = self.chosen[number % len(self.chosen)]
            random = Random(f"{self.seed} {self.law.name} {dtype} {number}")
            try:
                at = self.law.draw(self.subject, options, random)
            except Excluded as reason:
                self.excluded = str(reason)
                continue
            except Inconclusive as reason:
                self.nothing = str(reason)
                continue
            yield options, {
                "suite": SUITE, "slot": self.subject.slot, "name": str(self.subject.entry.name), "law": self.law.name,
                "options": _data(options), "at": at, "dtype": dtype, "device": self.device, "seed": random.getrandbits(32),
            }  # fmt: skip

    def _finding(self, case: dict[str, Any], options: Any, violation: Violation) -> Finding:
        if not self.stop_at_first:
            case, violation = self._shrunk(case, options, violation)
        return Finding(
            self.law.name,
            self.law.rule,
            violation.message,
            **violation.numbers,
            case=case,
            failed=self.failed,
            examples=self.examples,
            snippet=law_snippet(case),
        )

    def _shrunk(self, case: dict[str, Any], options: Any, violation: Violation) -> tuple[dict[str, Any], Violation]:
        """The same violation with the smallest sizes that still show it."""
        left, changed = TRIES, True
        while changed and left > 0:
            changed = False
            for size, least in self.law.shrinks.items():
                here = case["at"].get(size)
                for smaller in sorted({least, (least + here) // 2, here - 1}) if isinstance(here, int) and here > least else ():
                    left -= 1
                    candidate = {**case, "at": {**case["at"], size: smaller}}
                    self.event(self.law.name, candidate)
                    try:
                        retry(self.subject, self.law, options, candidate)
                    except Violation as again:
                        if isinstance(again, Raised) == isinstance(violation, Raised):
                            case, violation, changed = candidate, again, True
                            break
                    except Inconclusive:
                        continue
        return case, violation

    def result(self) -> CheckResult:
        status = "failed" if self.failed else "passed" if self.examples else "inconclusive"
        note = f"{self.failed} of {self.examples} cases" if self.failed else "" if self.examples else self.nothing
        return CheckResult(
            self.law.name, self.law.rule, self.law.rule, status, self.examples, self.worst, self.seconds, note,  # type: ignore[arg-type]
        )  # fmt: skip
