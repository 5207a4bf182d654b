"""Runs fewer parts of the suite in tests, and reads its reports."""

from __future__ import annotations

from tfkit_conformance.attention import cells as declared
from tfkit_conformance.mutants import ATTENTION_MUTANTS
from tfkit_conformance.relations import RELATIONS
from tfkit_conformance.suite import conformance, grade
from tfkit_conformance.suite.layers import LAYERS
from tiers import EVERY_CASE

MUTANTS = {mutant.name: mutant for mutant in ATTENTION_MUTANTS}
LAYER_NAMES = [layer.name for layer in LAYERS]


def reduce_suite(monkeypatch, relations=None, layers=None, cells=None, without=()):
    """Leaves the suite these relations, these layers and those of the declared cells that `cells` chooses, and takes parts such
    as `fixed_calls` from it: quick, or without the check that would find a fault first."""
    parts = [(grade, "RELATIONS", relations), (grade, "LAYERS", layers)]
    if cells is not None:
        parts.append((grade, "cells", lambda can, gradients: cells(declared.cells(can, gradients))))
    parts += [(conformance, part, lambda *given, **named: ()) for part in without]
    for module, name, value in parts:
        if value is not None:
            monkeypatch.setattr(module, name, value)


def share_relations(monkeypatch, number, shares=3):
    """Leaves the suite one share of the relations, so that subjects with other numbers run the others; all of them with
    TFKIT_CASES=all."""
    if not EVERY_CASE:
        reduce_suite(monkeypatch, relations=RELATIONS[number % shares :: shares])


def by_name(report):
    """The results of a report by check."""
    return {check.name: check for check in report.checks}


def without_clock(report):
    """The data of a report with all times 0."""
    data = report.as_data()
    return {**data, "seconds": 0, "checks": [{**check, "seconds": 0} for check in data["checks"]]}
