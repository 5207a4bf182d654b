"""Reads reports of the suite in tests."""

from __future__ import annotations

from tfkit_conformance.mutants import ATTENTION_MUTANTS
from tfkit_conformance.suite.layers import LAYERS

MUTANTS = {mutant.name: mutant for mutant in ATTENTION_MUTANTS}
LAYER_NAMES = [layer.name for layer in LAYERS]


def by_name(report):
    """The results of a report by check."""
    return {check.name: check for check in report.checks}


def without_clock(report):
    """The data of a report with all times 0."""
    data = report.as_data()
    return {**data, "seconds": 0, "checks": [{**check, "seconds": 0} for check in data["checks"]]}
