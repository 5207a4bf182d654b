"""Runs the laws on mutants of parts. Each mutant must be killed under every seed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from time import perf_counter

from tfkit import Catalogue, load_catalogue
from tfkit_conformance.laws.check import USUAL_DTYPES, evaluate
from tfkit_conformance.laws.law import part_under_test
from tfkit_conformance.laws.options import parsed, variants
from tfkit_conformance.report import ConformanceReport

from ..report import MutantRow
from .activation_mutants import MUTANTS as ACTIVATION
from .cell_mutants import MUTANTS as CELL
from .embeddings_mutants import MUTANTS as EMBEDDINGS
from .formula_mutants import MUTANTS as FORMULA
from .mutant import LawMutant
from .norm_mutants import MUTANTS as NORM
from .placement_mutants import MUTANTS as PLACEMENT
from .rotary_mutants import MUTANTS as ROTARY
from .score_mutants import MUTANTS as SCORE
from .scores_mutants import MUTANTS as SCORES


def mutants() -> tuple[LawMutant, ...]:
    """All mutants of the slots that have laws."""
    return (*ROTARY, *SCORES, *EMBEDDINGS, *NORM, *PLACEMENT, *ACTIVATION, *SCORE, *CELL, *FORMULA)


def evaluate_law_mutants(
    profile: str = "standard",
    seeds: Sequence[int] = (0, 1, 2),
    families: Collection[str] | None = None,
    catalogue: Catalogue | None = None,
    only: Collection[str] | None = None,
) -> Iterator[MutantRow]:
    """One row per mutant: the first law that kills it under each seed, equations before the rest; "" if none does.
    `families` are slots, `only` are names of mutants."""
    catalogue = catalogue or load_catalogue()
    for mutant in mutants():
        if (families is None or mutant.slot in families) and (only is None or mutant.name in only):
            begun = perf_counter()
            found = reports(mutant, profile, seeds, catalogue)
            seen = tuple(report.findings[0].check if report.findings else "" for report in found)
            yield MutantRow(mutant.name, mutant.slot, mutant.summary, seen, round(perf_counter() - begun, 2))


def reports(
    mutant: LawMutant,
    profile: str,
    seeds: Sequence[int],
    catalogue: Catalogue,
    stop_at_first: bool = True,
    laws: Collection[str] = (),
) -> list[ConformanceReport]:
    """The report on a mutant under each seed, by all laws or by `laws` alone."""
    entry = catalogue.find(mutant.slot, mutant.base)
    subject = mutant.change(part_under_test(catalogue, mutant.slot, entry))
    written = dict(mutant.options)
    chosen = [parsed(catalogue, mutant.slot, entry, written)] if written else variants(catalogue, entry)
    return [
        evaluate(subject, chosen, True, profile, seed, "cpu", USUAL_DTYPES[profile], stop_at_first=stop_at_first, laws=laws)
        for seed in seeds
    ]
