"""A node without a reference is listed as not checked, with those that read it, and the verdict is not VERIFIED."""

from __future__ import annotations

import types
from dataclasses import replace

import pytest

import tfkit
from kill_matrix.models.evaluation import SPECS
from tfkit.plugin import hookimpl
from tfkit_conformance.verification import verify
from tfkit_conformance.view.verify_data import verdict_in_words


def with_activation(catalogue, formula):
    """The catalogue with a copy of `gelu` of another name, as a plugin would bring it."""
    entry = replace(catalogue.find("activation", "gelu"), name="acme.gelu", formula=formula)
    plugin = types.ModuleType("acme")
    plugin.tfkit_activations = hookimpl(lambda: [entry])
    return catalogue.with_plugin(plugin, "acme")


def evaluated(catalogue):
    text = SPECS["decoder"].replace("activation: swiglu", "activation: acme.gelu")
    return verify(tfkit.parse_spec(text, catalogue), catalogue=catalogue)


@pytest.fixture(scope="module")
def report(catalogue):
    return evaluated(with_activation(catalogue, ""))


def test_a_node_without_a_reference_and_those_that_read_it_are_not_checked(report):
    rows = {row.where: row.message for row in report.rows if row.property == "reference" and row.dtype == "float32"}
    assert set(rows) == {"body", "logits"}
    assert rows["body"] == "no formula is known for activation acme.gelu"
    assert rows["logits"] == "it reads `body`, which is unchecked"
    assert {row.status for row in report.rows if row.property == "reference"} == {"not checked"}


def test_the_verdict_is_incomplete_and_names_the_node(report):
    assert (report.verdict, report.exit_code) == ("INCOMPLETE", 3)
    sentence = verdict_in_words(report.as_data())
    assert "`body` is not checked: no formula is known for activation acme.gelu" in sentence


def test_what_needs_no_reference_is_evaluated(report):
    status = {(row.property, row.dtype): row.status for row in report.rows if row.part == "whole model"}
    for dtype in ("float32", "float64"):
        assert status["decoding in chunks", dtype] == status["batch split", dtype] == "passed"
        assert status["site gradients", dtype] == status["gradient flow", dtype] == "passed"
        assert status["gradients", dtype] == "not checked"


def test_with_a_formula_the_same_model_is_verified(catalogue):
    report = evaluated(with_activation(catalogue, "tfkit_conformance.reference.formulas:gelu"))
    assert report.ok, str(report)
