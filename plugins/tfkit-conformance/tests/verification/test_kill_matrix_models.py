"""Every model mutant is found by a property that speaks of it, and a model without one passes."""

from __future__ import annotations

import pytest

from kill_matrix.models.evaluation import SPECS, verify_mutant
from kill_matrix.models.mutants import model_mutants

MUTANTS = {mutant.name: mutant for mutant in model_mutants()}
KILLED_IN_PARTS = {"causal_one_too_few", "embedding_scale_dropped", "attention_scale", "window_added", "heads_reversed"}
WHERE = {
    "cache": {"decoding in chunks", "failed step", "reordered rows"},
    "placement": {"wiring of the stack", "wiring of the layer", "norm"},
    "feed-forward": {"feed-forward"},
    "wiring": {"wiring of the stack", "wiring of the layer", "request", "tokens", "gradient flow"},
    "dropout": {"dropout on", "dropout off"},
    "backend": {"attention, padding by mask", "attention, padding by lengths"},
}


PARTS = {"cache": ("whole model",), "dropout": ("whole model",), "wiring": ("sub-layers", "whole model")}
"""What of `verify` is run for a family, the sub-layers unless written: the whole kill matrix takes a minute."""


def failed(shape, mutant, catalogue):
    parts = ("sub-layers", "whole model") if mutant is None else PARTS.get(mutant.family, ("sub-layers",))
    if mutant is not None and mutant.name in KILLED_IN_PARTS:
        parts = ("sub-layers",)
    report = verify_mutant(shape, 0, mutant, catalogue, ("float64",), parts)
    return {row.property for row in report.rows if row.status in ("failed", "inconclusive", "not run")}, report


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_where_it_belongs(name, catalogue):
    mutant = MUTANTS[name]
    found, report = failed(mutant.shape, mutant, catalogue)
    assert found & WHERE[mutant.family], f"found by {found or 'nothing'}"
    assert (report.verdict, report.exit_code) == ("FAILED", 1)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SPECS)
def test_a_model_without_a_mutant_passes(shape, catalogue):
    found, report = failed(shape, None, catalogue)
    assert not found
    assert (report.verdict, report.exit_code) == ("VERIFIED", 0)


def test_names_are_distinct_and_every_family_has_mutants():
    assert len(model_mutants()) == len(MUTANTS) >= 40
    assert {mutant.family for mutant in model_mutants()} == set(WHERE)
