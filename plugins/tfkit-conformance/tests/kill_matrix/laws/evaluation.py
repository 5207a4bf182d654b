"""The laws judged by seeded faults: each must be killed, under every seed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from tfkit.catalogue import Catalogue, load_catalogue
from tfkit_conformance.laws.check import USUAL_DTYPES, judge
from tfkit_conformance.laws.law import subject_of
from tfkit_conformance.laws.options import parsed, variants
from tfkit_conformance.report import ConformanceReport

from ..report import FaultRow
from .activation_mutants import FAULTS as ACTIVATION
from .embeddings_mutants import FAULTS as EMBEDDINGS
from .mutant import LawFault
from .norm_mutants import FAULTS as NORM
from .placement_mutants import FAULTS as PLACEMENT
from .rotary_mutants import FAULTS as ROTARY
from .scores_mutants import FAULTS as SCORES


@dataclass(frozen=True)
class Kills:
    """One fault under several seeds: all laws that see it under each, and what the first of them says."""

    name: str
    slot: str
    base: str
    summary: str
    seen_by: tuple[tuple[str, ...], ...]
    said: str

    @property
    def killed(self) -> bool:
        return bool(self.seen_by) and all(self.seen_by)

    def as_data(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return {**asdict(self), "killed": self.killed}


def faults() -> tuple[LawFault, ...]:
    """All seeded faults of the slots that have laws."""
    return (*ROTARY, *SCORES, *EMBEDDINGS, *NORM, *PLACEMENT, *ACTIVATION)


def selftest_laws(
    profile: str = "standard",
    seeds: Sequence[int] = (0, 1, 2),
    families: Collection[str] | None = None,
    catalogue: Catalogue | None = None,
    only: Collection[str] | None = None,
) -> Iterator[FaultRow]:
    """One row per seeded fault: the law that sees it first under each seed, equations before the rest; "" where none does.
    `families` are slots, `only` names of faults."""
    catalogue = catalogue or load_catalogue()
    for fault in faults():
        if (families is None or fault.slot in families) and (only is None or fault.name in only):
            begun = perf_counter()
            reports = _reports(fault, profile, seeds, catalogue, hasty=True)
            seen = tuple(report.findings[0].check if report.findings else "" for report in reports)
            yield FaultRow(fault.name, fault.slot, fault.summary, seen, round(perf_counter() - begun, 2))


def kill_matrix(
    profile: str = "standard",
    seeds: Sequence[int] = (0, 1, 2),
    catalogue: Catalogue | None = None,
    only: Collection[str] | None = None,
    laws: Collection[str] = (),
) -> Iterator[Kills]:
    """One row per seeded fault, with every law (of `laws`, where given) that sees it: several times as slow as
    `selftest_laws`."""
    catalogue = catalogue or load_catalogue()
    for fault in faults():
        if only is None or fault.name in only:
            reports = _reports(fault, profile, seeds, catalogue, hasty=False, laws=laws)
            seen = tuple(tuple(found.check for found in report.findings) for report in reports)
            said = next((report.findings[0].message for report in reports if report.findings), "")
            yield Kills(fault.name, fault.slot, fault.base, fault.summary, seen, said)


def _reports(
    fault: LawFault, profile: str, seeds: Sequence[int], catalogue: Catalogue, hasty: bool, laws: Collection[str] = ()
) -> list[ConformanceReport]:
    entry = catalogue.find(fault.slot, fault.base)
    subject = fault.change(subject_of(catalogue, fault.slot, entry))
    written = dict(fault.options)
    chosen = [parsed(catalogue, fault.slot, entry, written)] if written else variants(catalogue, entry)
    return [judge(subject, chosen, True, profile, seed, "cpu", USUAL_DTYPES[profile], hasty=hasty, laws=laws) for seed in seeds]
