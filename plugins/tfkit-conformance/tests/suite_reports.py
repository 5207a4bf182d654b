"""Reads reports of the suite in tests."""

from __future__ import annotations

from tfkit_conformance.mutants import ATTENTION_MUTANTS
from tfkit_conformance.relations import RELATIONS
from tfkit_conformance.suite import grade
from tfkit_conformance.suite.layers import LAYERS
from tiers import EVERY_CASE

MUTANTS = {mutant.name: mutant for mutant in ATTENTION_MUTANTS}
LAYER_NAMES = [layer.name for layer in LAYERS]


def share_relations(monkeypatch, number, shares=3):
    """Leaves the suite one share of the relations, so that subjects with other numbers run the others; all of them with
    TFKIT_CASES=all."""
    if not EVERY_CASE:
        monkeypatch.setattr(grade, "RELATIONS", RELATIONS[number % shares :: shares])


def by_name(report):
    """The results of a report by check."""
    return {check.name: check for check in report.checks}


def without_clock(report):
    """The data of a report with all times 0."""
    data = report.as_data()
    return {**data, "seconds": 0, "checks": [{**check, "seconds": 0} for check in data["checks"]]}
