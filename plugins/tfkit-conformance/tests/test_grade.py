"""A grade tells a careful kernel from one whose accumulator is too narrow, which the bound cannot; a promise is held."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kill_matrix.correct_kernels import CORRECT_KERNELS, classed
from small_backend import declaring, small
from suite_reports import MUTANTS
from tfkit.builtin.attention.entries import EAGER
from tfkit.plugin import Capabilities, Numerics, Range
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.evaluated import Evaluated
from tfkit_conformance.finding import Violation
from tfkit_conformance.mutants.kernel import entry_of
from tfkit_conformance.mutants.kernel.kernel import CAPABILITIES
from tfkit_conformance.suite.grade import GRADES, check_grade, grade_of, ratios
from tfkit_conformance.suite.layers import output

WHOLE = next(kernel for kernel in CORRECT_KERNELS if kernel.name == "whole")
OPEN = declaring(key_length=Range(), query_length=Range(), head_dim=Range(), dtypes={"float32", "bfloat16"})


BEYOND_THE_BOUND = ("sum_in_bfloat16", "backward_key_in_bfloat16")
"""So bad that the graded call is refused."""


def backend(mutant, can=CAPABILITIES):
    return backend_under_test(entry_of(mutant, "inaccurate", can), attend=MUTANTS[mutant].fresh())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_eager_has_grade_a(dtype):
    letter, ratio = check_grade(backend_under_test(EAGER), dtype)
    assert letter == "A"
    assert 0.5 < ratio <= 1.5


def test_output_and_every_gradient_are_graded():
    assert set(ratios(backend_under_test(EAGER), "float32")) == {"output", "query", "key", "value"}
    assert set(ratios(small(can=declaring(key_length=Range(), query_length=Range(), backward=False)), "float32")) == {"output"}


@pytest.mark.parametrize(
    ("mutant", "dtype", "tensor"),
    [
        ("output_in_bfloat16", "bfloat16", "output"),
        ("sum_in_bfloat16", "bfloat16", "output"),
        ("backward_query_in_bfloat16", "bfloat16", "query"),
        ("backward_key_in_bfloat16", "float32", "key"),
    ],
)
def test_an_accumulator_in_bfloat16_is_worse_than_a(mutant, dtype, tensor):
    found = ratios(backend(mutant), dtype)
    assert found[tensor] > GRADES["B"]
    if mutant in BEYOND_THE_BOUND:
        with pytest.raises(Violation, match="times the allowed"):
            check_grade(backend(mutant), dtype)
    else:
        assert check_grade(backend(mutant), dtype) == ("C", max(found.values()))
    assert max(ratios(backend("weights_unnormalised"), dtype).values()) < GRADES["B"]  # its output is the kernel's own


def test_a_grade_sees_what_the_bound_cannot():
    case = Case(H=2, G=2, Q=16, K=1024, D=64, V=64, dtype="bfloat16")
    assert output(Evaluated(backend("output_in_bfloat16"), case)) <= 1
    assert check_grade(backend("output_in_bfloat16"), "bfloat16")[0] == "C"


def test_a_promised_grade_that_is_not_kept_is_a_failure():
    promised = classed(Numerics(tf32=True, grade="A"))
    with pytest.raises(Violation) as raised:
        check_grade(backend("output_in_bfloat16", promised), "bfloat16")
    said = raised.value
    assert (said.check, said.tensor, said.bound) == ("grade", "output", 1.5)
    letter = grade_of(said.got)
    assert said.message == (
        f"output in bfloat16 has {said.got:.2f} times the rounding error of a careful kernel: {letter}, where A is promised"
    )
    kept = backend_under_test(entry_of("right", "accurate", promised), attend=WHOLE.attend)
    assert check_grade(kept, "bfloat16")[0] == "A"


def test_a_better_grade_than_declared_passes():
    promised = Capabilities(
        **{**EAGER.capabilities.model_dump(), "numerics": Numerics(probabilities="accumulation", grade="B")}
    )
    assert check_grade(backend_under_test(replace(EAGER, capabilities=promised)), "float32")[0] == "A"


def test_an_undeclared_grade_fails_no_backend():
    assert check_grade(backend("output_in_bfloat16"), "bfloat16")[0] != "A"


@pytest.mark.parametrize(
    ("ratio", "letter"),
    [(0.0, "A"), (1.5, "A"), (1.51, "B"), (3.0, "B"), (3.01, "C"), (1e300, "C"), (float("inf"), "C"), (float("nan"), "C")],
)
def test_the_letters(ratio, letter):
    assert grade_of(ratio) == letter


def test_a_seed_is_another_draw():
    subject = small(can=OPEN)
    assert ratios(subject, "float32", 0) == ratios(subject, "float32", 0)
    assert ratios(subject, "float32", 0) != ratios(subject, "float32", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "can",
    [
        OPEN,
        declaring(query_length=Range(maximum=1), key_length=Range()),
        declaring(
            head_dim=Range(minimum=128, multiple=128),
            key_length=Range(minimum=128, multiple=128),
            query_length=Range(minimum=128),
        ),
    ],
    ids=["open", "decoding", "blocky"],
)  # fmt: skip
def test_narrow_declarations_are_graded_too(can):
    letter, _ = check_grade(small(WHOLE.attend, can), "float32")
    assert letter == "A"


def test_no_grade_without_a_suitable_size():
    with pytest.raises(LookupError, match="accepts none of the sizes that are graded"):
        check_grade(small(), "float32")


@pytest.mark.parametrize("dtype", sorted(EAGER.capabilities.dtypes))
def test_eager_has_its_declared_grade(dtype):
    assert EAGER.capabilities.numerics.grade == "A"
    letter, _ = check_grade(backend_under_test(EAGER), dtype)
    assert letter == "A"
