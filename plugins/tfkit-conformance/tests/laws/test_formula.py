"""Every built-in part equals its formula, every error of a formula is found, and a part without a formula is not checked."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kill_matrix.laws.evaluation import reports
from kill_matrix.laws.formula_mutants import MUTANTS, larger_outputs
from kill_matrix.laws.mutant import LawMutant
from kill_matrix.laws.rotary_mutants import spoilt
from tfkit_conformance.laws import LAWS, check_part
from tfkit_conformance.laws.check import evaluate
from tfkit_conformance.laws.law import part_under_test
from tfkit_conformance.laws.options import variants
from tfkit_conformance.reference import BUILT_IN

CHECKS = ("formula", "formula_exact")


@pytest.mark.parametrize("slot", BUILT_IN)
def test_every_builtin_entry_has_a_formula_in_the_kit(slot, catalogue):
    names = {name for name in catalogue.names(slot) if "." not in name}
    assert names == set(BUILT_IN[slot])


@pytest.mark.parametrize("slot", LAWS)
def test_an_output_of_any_builtin_that_is_a_thousandth_too_large_is_found(slot, catalogue):
    mutants = larger_outputs(catalogue, slot)
    skipped = {"position": {"none"}, "score": {"dot"}}.get(slot, set())
    assert {mutant.base for mutant in mutants} == {name for name in catalogue.names(slot) if "." not in name} - skipped
    for mutant in mutants:
        (report,) = reports(mutant, "quick", (0,), catalogue, laws=CHECKS)
        assert {finding.check for finding in report.findings} & set(CHECKS), mutant.name


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_an_error_that_keeps_the_laws_of_the_family_is_found_by_the_formula(mutant, catalogue):
    (report,) = reports(mutant, "quick", (0,), catalogue, laws=CHECKS)
    assert {finding.check for finding in report.findings} & set(CHECKS)
    assert "formula" in report.findings[0].message or "visible tokens" in report.findings[0].message


@pytest.mark.parametrize("slot", LAWS)
def test_every_builtin_part_equals_its_formula(slot, catalogue):
    for name in catalogue.names(slot):
        if "." in name or (slot, name) in (("score", "dot"), ("position", "none")):
            continue
        entry = catalogue.find(slot, name)
        subject = part_under_test(catalogue, slot, entry)
        report = evaluate(subject, variants(catalogue, entry), False, "quick", 0, "cpu", ("float32", "bfloat16"), laws=CHECKS)
        report.raise_for_failures()
        assert {check.name for check in report.checks} & set(CHECKS), name


def scaled(options, weights, x):
    """The formula of a plugin: g x / sqrt(mean(x^2) + 1)."""
    return weights["weight"] * x / torch.sqrt((x**2).mean(-1, keepdim=True) + options.eps)


@pytest.mark.parametrize(("formula", "said"), [("", "not checked: the entry brings no formula"), (f"{__name__}:scaled", "")])
def test_a_part_of_a_plugin_is_checked_by_its_own_formula_or_not_at_all(formula, said, offering, catalogue):
    entry = replace(catalogue.find("norm", "rms_norm"), name="acme.rms", formula=formula)
    report = check_part("norm", entry, catalogue=offering("norm", entry), profile="quick", options={})
    rows = {row.cell: row.refused for row in report.ledger}
    assert {rows[name] for name in CHECKS} == {said}
    assert report.verdict == "CONFORMANT"
    assert ({check.name for check in report.checks} >= set(CHECKS)) is (not said)


def wrong(options, weights, x):
    return 2 * scaled(options, weights, x)


def test_a_part_that_differs_from_its_own_formula_is_not_conformant(offering, catalogue):
    entry = replace(catalogue.find("norm", "rms_norm"), name="acme.rms", formula=f"{__name__}:wrong")
    report = check_part("norm", entry, catalogue=offering("norm", entry), profile="quick", options={})
    assert {finding.check for finding in report.findings} == set(CHECKS)


@pytest.mark.parametrize("first", [40, 64, 2048])
def test_positions_that_are_wrong_from_some_place_on_are_found(first, catalogue):
    late = spoilt(positions=lambda where: where + (where >= first))
    mutant = LawMutant("late", "position", "rotary_half", "wrong from some position on", late)
    (report,) = reports(mutant, "standard", (0,), catalogue, laws=CHECKS)
    assert {finding.check for finding in report.findings} & set(CHECKS)
