"""The laws evaluated by mutants: each must be killed, under every seed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from tfkit.catalogue import Catalogue, load_catalogue
from tfkit_conformance.laws.check import USUAL_DTYPES, evaluate
from tfkit_conformance.laws.options import parsed, variants
from tfkit_conformance.laws.part import part_under_test
from tfkit_conformance.report import ConformanceReport

from ..report import MutantRow
from .activation_mutants import MUTANTS as ACTIVATION
from .embeddings_mutants import MUTANTS as EMBEDDINGS
from .mutant import LawMutant
from .norm_mutants import MUTANTS as NORM
from .placement_mutants import MUTANTS as PLACEMENT
from .rotary_mutants import MUTANTS as ROTARY
from .scores_mutants import MUTANTS as SCORES


@dataclass(frozen=True)
class Kills:
    """One mutant under several seeds: all laws that see it under each, and what the first of them says."""

    name: str
    slot: str
    base: str
    summary: str
    killed_by: tuple[tuple[str, ...], ...]
    said: str

    @property
    def killed(self) -> bool:
        return bool(self.killed_by) and all(self.killed_by)

    def as_data(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return {**asdict(self), "killed": self.killed}


def mutants() -> tuple[LawMutant, ...]:
    """All mutants of the slots that have laws."""
    return (*ROTARY, *SCORES, *EMBEDDINGS, *NORM, *PLACEMENT, *ACTIVATION)


def evaluate_law_mutants(
    profile: str = "standard",
    seeds: Sequence[int] = (0, 1, 2),
    families: Collection[str] | None = None,
    catalogue: Catalogue | None = None,
    only: Collection[str] | None = None,
) -> Iterator[MutantRow]:
    """One row per mutant: the law that sees it first under each seed, equations before the rest; "" where none does.
    `families` are slots, `only` names of mutants."""
    catalogue = catalogue or load_catalogue()
    for mutant in mutants():
        if (families is None or mutant.slot in families) and (only is None or mutant.name in only):
            begun = perf_counter()
            reports = _reports(mutant, profile, seeds, catalogue, stop_at_first=True)
            seen = tuple(report.findings[0].check if report.findings else "" for report in reports)
            yield MutantRow(mutant.name, mutant.slot, mutant.summary, seen, round(perf_counter() - begun, 2))


def kill_matrix(
    profile: str = "standard",
    seeds: Sequence[int] = (0, 1, 2),
    catalogue: Catalogue | None = None,
    only: Collection[str] | None = None,
    laws: Collection[str] = (),
) -> Iterator[Kills]:
    """One row per mutant, with every law (of `laws`, where given) that sees it: several times as slow as
    `evaluate_law_mutants`."""
    catalogue = catalogue or load_catalogue()
    for mutant in mutants():
        if only is None or mutant.name in only:
            reports = _reports(mutant, profile, seeds, catalogue, stop_at_first=False, laws=laws)
            seen = tuple(tuple(found.check for found in report.findings) for report in reports)
            said = next((report.findings[0].message for report in reports if report.findings), "")
            yield Kills(mutant.name, mutant.slot, mutant.base, mutant.summary, seen, said)


def _reports(
    mutant: LawMutant, profile: str, seeds: Sequence[int], catalogue: Catalogue, stop_at_first: bool, laws: Collection[str] = ()
) -> list[ConformanceReport]:
    entry = catalogue.find(mutant.slot, mutant.base)
    subject = mutant.change(part_under_test(catalogue, mutant.slot, entry))
    written = dict(mutant.options)
    chosen = [parsed(catalogue, mutant.slot, entry, written)] if written else variants(catalogue, entry)
    return [
        evaluate(subject, chosen, True, profile, seed, "cpu", USUAL_DTYPES[profile], stop_at_first=stop_at_first, laws=laws)
        for seed in seeds
    ]
