"""The suite evaluated by mutants, in small: every mutant of a frozen selection is seen, no correct backend raises an alarm,
and a suite with its checks taken out lets the mutants live, so that the evaluation can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kill_matrix import evaluation as kill_matrix
from kill_matrix.correct_kernels import CorrectKernel
from small_backend import declaring, guarded
from tfkit.inspection import MASK_TERMS
from tfkit.plugin import Range
from tfkit_conformance.mutants import ATTENTION_MUTANTS
from tfkit_conformance.mutants.kernel.kernel import Kernel
from tfkit_conformance.relations import RELATIONS
from tfkit_conformance.relations.dropout import DROPOUT

NARROW = declaring(key_length=Range(maximum=40), lse=True, grouped_queries=True, value_dim_differs=True)
MASKED = declaring(mask_terms={"causal", "key_lengths"}, tensor_offset=True)
WINDOWED = declaring(mask_terms={"window", "key_visible"}, tensor_offset=True)
BIASED = declaring(bias_kinds={"linear", "distance"}, bias_gradient={"linear", "distance"}, mask_terms=frozenset())
DENSE = declaring(bias_kinds={"dense"}, bias_gradient={"dense"}, mask_terms=frozenset(), query_length=Range(maximum=5))
DROPPING = declaring(dropout=True, mask_terms=frozenset(), key_length=Range(maximum=40))
SELECTION = {
    "causal_one_too_many": (MASKED, "support"),
    "offset_of_first_row": (MASKED, "support"),
    "key_lengths_of_previous_row": (MASKED, "support"),
    "terms_joined_by_or": (MASKED, "support"),
    "window_right_one_too_many": (WINDOWED, "support"),
    "key_visible_inverted": (WINDOWED, "support"),
    "masked_row_first_value": (MASKED, "support"),
    "masked_row_gradient_nan": (MASKED, "contract"),
    "scale_one_percent": (NARROW, "scores"),
    "output_not_rescaled": (NARROW, "output"),
    "lse_base_two": (NARROW, "output"),
    "heads_interleaved": (NARROW, "support"),
    "group_gradient_averaged": (NARROW, "gradients"),
    "backward_mask_ignored": (MASKED, "support of gradients"),
    "backward_query_two_percent": (NARROW, "gradients"),
    "backward_key_and_value_swapped": (NARROW, "support of gradients"),
    "linear_sign": (BIASED, "scores"),
    "distance_low_off_by_one": (BIASED, "scores"),
    "bias_gradient_of_first_row": (DENSE, "gradients"),
    "dropout_unscaled": (DROPPING, "A7 kept_weights_are_scaled"),
    "dropout_without_being_asked": (DROPPING, "contract"),
    "query_taken_as_contiguous": (NARROW, "scores"),
    "grad_output_taken_as_contiguous": (NARROW, "gradients"),
    "output_in_query": (declaring(backward=False, deterministic_backward=False), "contract"),
    "wavers": (NARROW, "contract"),
    "undeclared_softcap_ignored": (None, "refusals"),
}
"""Mutants, the small declaration that is enough to meet them, and the check that is expected to see them."""

PLAIN = declaring(mask_terms=frozenset(), backward=False, deterministic_backward=False)
CORRECT = (
    CorrectKernel("plain", "No mask, no gradients.", guarded(Kernel(), PLAIN), PLAIN),
    CorrectKernel("windowed", "Windows and padding.", guarded(Kernel(block=4, base2=False), WINDOWED), WINDOWED),
)


def trimmed(mutant, can):
    """The mutant in a backend that declares no more than `can` and refuses the rest."""
    return mutant if can is None else replace(mutant, capabilities=can, fresh=lambda: guarded(mutant.fresh(), can))


CHOSEN = tuple(trimmed(mutant, SELECTION[mutant.name][0]) for mutant in ATTENTION_MUTANTS if mutant.name in SELECTION)
FAMILIES = {mutant.family for mutant in ATTENTION_MUTANTS}


@pytest.fixture
def matrix_of(monkeypatch):
    """A kill matrix of these mutants of attention and of the two correct kernels above."""

    def run(mutants, **named):
        parts = {"ATTENTION_MUTANTS": mutants, "CORRECT_KERNELS": CORRECT, "_other_rows": lambda *given: iter(())}
        for name, value in parts.items():
            monkeypatch.setattr(kill_matrix, name, value)
        return kill_matrix.run_kill_matrix("quick", seeds=(0,), **named)

    return run


def test_the_selection_has_mutants_of_every_family():
    assert {mutant.name for mutant in CHOSEN} == set(SELECTION)
    for family in FAMILIES:
        assert sum(mutant.family == family for mutant in CHOSEN) >= 2, family
    assert {term for can, _ in SELECTION.values() if can for term in can.mask_terms} <= set(MASK_TERMS)


@pytest.mark.exhaustive
def test_every_mutant_of_the_selection_is_killed_by_the_check_made_for_it(matrix_of, reduce):
    reduce(relations=DROPOUT)  # the other relations come later than the layers anyway
    told = []
    report = matrix_of(CHOSEN, families=FAMILIES, progress=told.append)
    assert {row.name: row.killed_by for row in report.mutants} == {name: (check,) for name, (_, check) in SELECTION.items()}
    assert (report.survivors, report.correct_kernels, report.exit_code) == ((), (), 0)
    assert told[0] == "killed masks: causal_one_too_many, by support"
    data = report.as_data()
    assert data["kills"]["refusals"] == 1
    assert sum(data["kills"].values()) == len(SELECTION)


@pytest.mark.slow
def test_a_suite_without_its_checks_lets_mutants_survive(matrix_of, reduce):
    chosen = CHOSEN[::4]
    reduce(relations=(), layers=(), without=("fixed_calls", "guided_calls"))
    told = []
    report = matrix_of(chosen, families=FAMILIES, progress=told.append)
    assert [row.name for row in report.survivors] == [mutant.name for mutant in chosen]
    assert report.exit_code == 1
    assert told[0].startswith("SURVIVED masks: causal_one_too_many (the causal limit is off by one")
    assert told[0].endswith("under seed 0")


def test_a_mutant_must_be_killed_under_every_seed():
    row = kill_matrix.MutantRow("x", "masks", "y", ("support", ""), 0.0)
    report = kill_matrix.KillMatrixReport("quick", (0, 1), (row,), (), 0.0)
    assert not row.killed
    assert (report.survivors, report.exit_code) == ((row,), 1)
    assert not kill_matrix.MutantRow("x", "masks", "y", (), 0.0).killed


@pytest.mark.slow
def test_no_correct_backend_raises_a_false_alarm(matrix_of, reduce):
    reduce(relations=RELATIONS[::3])
    report = matrix_of(())
    assert [row.alarms for row in report.correct_kernels] == [(), ()]
    assert all(row.examples > 100 and 0 < row.worst <= 1 for row in report.correct_kernels)
    assert (report.alarmed, report.exit_code) == ((), 0)


@pytest.mark.slow
def test_an_alarm_on_a_correct_backend_fails_the_run(reduce):
    wrong = next(mutant for mutant in CHOSEN if mutant.name == "scale_one_percent")
    kernel = CorrectKernel("wrong", "Off by one percent.", wrong.fresh(), wrong.capabilities)
    reduce(relations=())
    row = kill_matrix.evaluate_correct_kernel(kernel, "quick", (3,))
    assert row.alarms
    assert row.alarms[0].startswith("seed 3: scores: weights[")
    assert kill_matrix.KillMatrixReport("quick", (3,), (), (row,), 0.0).exit_code == 1


@pytest.mark.exhaustive
def test_the_documented_command_prints_and_writes_the_matrix(tmp_path):
    command = [
        sys.executable,
        str(Path(kill_matrix.__file__).parent),
        "--profile",
        "quick",
        "--seeds",
        "1",
        "--family",
        "activation",
    ]
    done = subprocess.run([*command, "--json", "m.json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "m.json").read_text())
    assert data["mutants"]
    assert {row["family"] for row in data["mutants"]} == {"activation"}
    count = len(data["mutants"])
    assert f"activation: {count} of {count}" in done.stdout
