"""Smaller cases are cases, are accepted, come in order, and reach what a case needs to fail."""

from dataclasses import replace

import pytest

from tfkit import load_catalogue
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.case_data import invalid_fields
from tfkit_conformance.suite.again import smaller_cases

LARGE = Case(
    B=3, H=6, G=2, Q=17, K=33, D=24, V=16, causal=True, offset=(1, 2, 3), key_lengths=(3, 20, 33), bias="dense",
    bias_gradient=True, gradients=True, softcap=1.5, layout="sliced", dropout=0.2,
)  # fmt: skip


@pytest.fixture(scope="module")
def subject():
    return backend_under_test(load_catalogue().find("backend", "eager"))


def test_smaller_cases_are_accepted_and_distinct(subject):
    found = list(smaller_cases(LARGE, subject))
    assert len(found) == len(set(map(repr, found))) > 100
    assert found[0] == Case(D=24, V=16)
    for case in found:
        assert list(invalid_fields(case)) == []
        assert subject.accepts(case.request())
    assert LARGE not in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "least"),
    [
        (lambda case: True, Case(D=1, V=1)),
        (lambda case: case.causal and case.bias == "dense", Case(D=1, V=1, causal=True, bias="dense", offset=(1,))),
        (lambda case: case.K > 8 and case.key_lengths, Case(K=9, D=1, V=1, key_lengths=(3,))),
        (lambda case: case.B > 1 and case.Q > 4, Case(B=2, Q=5, D=1, V=1)),
        (lambda case: case == LARGE, LARGE),
    ],
)
def test_repeated_lists_lead_to_the_smallest_case_that_fails(subject, fails, least):
    case, lists = LARGE, 0
    while smaller := next((other for other in smaller_cases(case, subject) if fails(other)), None):
        case, lists = smaller, lists + 1
    assert lists <= 6
    assert replace(case, name="") == least
