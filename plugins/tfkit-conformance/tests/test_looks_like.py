"""What is wrong has a name: the mutant that does the same. What is right has none."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from kill_matrix.correct_kernels import CORRECT_KERNELS
from small_backend import changing
from tfkit.builtin.attention.entries import EAGER
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import Case
from tfkit_conformance.finding import Finding
from tfkit_conformance.mutants import ATTENTION_MUTANTS
from tfkit_conformance.mutants.kernel import entry_of
from tfkit_conformance.mutants.kernel.kernel import CAPABILITIES, Kernel
from tfkit_conformance.suite.runner import explains, looks_like

MUTANTS = {mutant.name: mutant for mutant in ATTENTION_MUTANTS}
PLAIN = Case(B=2, H=4, G=2, Q=5, K=7, D=8, V=6, seed=3)
CAUSAL = replace(PLAIN, causal=True, offset=1)
GRADIENTS = replace(PLAIN, gradients=True)


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr(sys.modules["tfkit_conformance.suite.runner"], "SECONDS", 600.0)


def subject(attend):
    return backend_under_test(entry_of("mine", "on trial", CAPABILITIES), attend=attend)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("causal_one_too_many", CAUSAL),
        ("causal_one_too_few", CAUSAL),
        ("offset_of_first_row", replace(CAUSAL, offset=(1, 3))),
        ("window_sides_swapped", replace(PLAIN, window=(2, 0), offset=2)),
        ("window_left_ignored", replace(PLAIN, window=(1, 1), offset=1)),
        ("window_right_ignored", replace(PLAIN, window=(1, 1), offset=1)),
        ("key_lengths_one_too_many", replace(PLAIN, key_lengths=(3, 5))),
        ("segments_in_order", replace(PLAIN, segments=3)),
        ("key_visible_inverted", replace(PLAIN, key_visible="coins")),
        ("mask_ignored", CAUSAL),
        ("masked_row_mean_of_values", replace(CAUSAL, offset=-2)),
        ("heads_interleaved", PLAIN),
        ("scale_one_percent", PLAIN),
        ("softcap_ignored", replace(PLAIN, softcap=0.7)),
        ("bias_ignored", replace(PLAIN, bias="dense")),
        ("linear_sign", replace(PLAIN, bias="linear", offset=2)),
        ("lse_base_two", replace(PLAIN, lse=True)),
        ("backward_query_unscaled", GRADIENTS),
        ("backward_softcap_slope_missing", replace(GRADIENTS, softcap=0.7)),
        ("group_gradient_averaged", GRADIENTS),
        ("query_taken_as_contiguous", replace(PLAIN, layout="heads_last")),
    ],
)
def test_a_mutant_is_named(name, case):
    assert looks_like(subject(MUTANTS[name].fresh()), case) == MUTANTS[name].summary


def test_the_same_mistake_in_other_code_has_the_same_name():
    eager = backend_under_test(EAGER)

    def attend(inputs, options):
        return eager.attend(replace(inputs, mask=replace(inputs.mask, offset=inputs.mask.offset + 1)), eager.options)

    assert looks_like(subject(attend), replace(CAUSAL, dtype="bfloat16")) == MUTANTS["causal_one_too_many"].summary


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", CORRECT_KERNELS[:3], ids=lambda kernel: kernel.name)
def test_a_correct_backend_matches_no_mutant(kernel, dtype):
    for case in (CAUSAL, replace(GRADIENTS, bias="distance", offset=1, lse=True)):
        assert looks_like(subject(kernel.attend), replace(case, dtype=dtype)) == ""


@pytest.mark.parametrize(
    "attend",
    [
        changing(lambda inputs, answer: replace(answer, output=answer.output * 1.37 + 0.11)),
        changing(lambda inputs, answer: replace(answer, output=answer.output[..., :1])),
        lambda inputs, options: None,
        lambda inputs, options: {}["kernel"],
    ],
    ids=["unheard of", "shape", "nothing", "raises"],
)
def test_an_error_without_a_mutant_has_no_name(attend):
    assert looks_like(subject(attend), GRADIENTS) == ""


@pytest.mark.slow
def test_larger_cases_decide_between_mutants_that_match_a_small_one():
    small = Case(Q=1, K=2, causal=True, offset=0)  # one key too many is all that is hidden
    larger = replace(small, Q=3, K=6)
    wrong = {name: subject(MUTANTS[name].fresh()) for name in ("causal_one_too_many", "mask_ignored")}
    assert looks_like(wrong["causal_one_too_many"], small) == looks_like(wrong["mask_ignored"], small)
    for name, each in wrong.items():
        assert looks_like(each, small, [larger]) == MUTANTS[name].summary
        assert looks_like(each, small, [small]) == looks_like(each, small)


def test_one_match_on_a_small_case_is_tried_on_the_larger_ones():
    """Whoever sees one key too many with few keys only is not the mutant that always does."""
    mutant = MUTANTS["causal_one_too_many"].fresh()

    def attend(inputs, options):
        return (mutant if inputs.key.shape[-2] < 6 else changed)(inputs, options)

    changed = changing(lambda inputs, answer: replace(answer, output=answer.output * 1.37))
    small, larger = replace(PLAIN, Q=4, K=5, causal=True, offset=0), [replace(CAUSAL, seed=seed) for seed in range(3)]
    assert looks_like(subject(attend), small) == MUTANTS["causal_one_too_many"].summary
    assert looks_like(subject(attend), small, larger) == ""


def test_a_mutant_explains_the_findings_whose_check_it_fails():
    summary = MUTANTS["causal_one_too_many"].summary

    def finding(check, case):
        return Finding(check, "A4", "wrong", case=case.as_data())

    assert explains(summary, finding("support", CAUSAL), "cpu")
    assert not explains(summary, finding("support", PLAIN), "cpu")
    assert explains(summary, Finding("declaration", "A1", "wrong"), "cpu")  # there is nothing to run


def test_a_mutant_of_an_earlier_finding_is_preferred():
    small = Case(Q=1, K=2, causal=True, offset=0)
    attend = subject(MUTANTS["causal_one_too_many"].fresh())
    names = [MUTANTS[name].summary for name in ("causal_one_too_many", "mask_ignored")]
    assert [looks_like(attend, small, (), [name]) for name in names] == names


def test_the_search_for_a_mutant_has_a_time_limit(monkeypatch):
    monkeypatch.setattr(sys.modules["tfkit_conformance.suite.runner"], "SECONDS", -1.0)
    assert looks_like(subject(MUTANTS["causal_one_too_many"].fresh()), CAUSAL) == ""


def test_mutants_with_state_do_not_affect_each_other():
    assert looks_like(subject(Kernel()), replace(CAUSAL, seed=1)) == ""
    remembering = subject(MUTANTS["remembers_scale"].fresh())
    remembering.call(replace(PLAIN, scale=0.9).inputs())
    assert looks_like(remembering, PLAIN) == ""  # nobody else was called with 0.9
