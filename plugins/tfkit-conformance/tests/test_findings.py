"""A wrong backend is NONCONFORMANT. Its findings have the smallest case, and a replay gives the same message."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace

import pytest

from small_backend import changing, declaring, small
from suite_reports import LAYER_NAMES, MUTANTS, by_name, without_clock
from tfkit import InputError
from tfkit.plugin import Numerics, Range
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.case_data import case_of
from tfkit_conformance.finding import Violation
from tfkit_conformance.suite.again import replay
from tfkit_conformance.suite.conformance import check_backend
from tfkit_conformance.suite.layers import Layer


@pytest.mark.slow
def test_a_wrong_mask_is_reported_with_the_smallest_case_and_the_matching_mutant(few):
    mutant = MUTANTS["causal_one_too_many"]
    subject = small(mutant.fresh())
    report = check_backend(subject, profile="quick", shrink_steps=1000)
    assert (report.verdict, report.exit_code) == ("NONCONFORMANT", 1)
    found = report.findings[0]
    assert (found.check, found.rule) == ("support", "A4")
    assert found.message.startswith("query row 0 of batch row 0, head 0, sees key 1; it must not")
    smallest = case_of(found.case)
    assert (smallest.Q, smallest.K) in ((1, 2), (2, 2), (2, 3))  # the smallest of the cell that it was found in
    assert replace(smallest, Q=1, K=2) == Case(K=2, causal=True, offset=0, gradients=True)
    assert found.looks_like == mutant.summary
    assert 0 < found.failed <= found.examples
    assert by_name(report)["support"].status == "failed"

    assert replay(subject, smallest, check="support") == f"support: {found.message}"
    assert replay(subject, smallest) == f"support: {found.message}"
    assert replay(small(), smallest) == "passed"
    code = found.snippet.replace('"small"', "subject")
    assert code != found.snippet
    printed, names = io.StringIO(), {"subject": subject}
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    assert printed.getvalue() == f"support: {found.message}\n"
    assert names["inputs"].key.shape == (1, 1, smallest.K, 8)
    assert names["grad_output"].shape == (1, 1, smallest.Q, 8)

    with pytest.raises(Violation, match="support: query row 0") as raised:
        report.raise_for_failures()
    assert (raised.value.check, raised.value.index) == ("support", (0, 0, 0, 1))


def test_a_replay_with_an_unknown_check_or_backend_is_an_error(catalogue):
    case = Case(K=2)
    with pytest.raises(InputError, match=r"TFK095.*there is no check `suport` to run again.*checks: contract, support"):
        replay(small(), case, check="suport")
    with pytest.raises(InputError, match=r"TFK094.*there is no attention backend `egaer`.*did you mean `eager`"):
        replay("egaer", case, catalogue=catalogue)
    assert replay("eager", replace(case, causal=True, offset=0), check="R19 later_keys", catalogue=catalogue) == "passed"


@pytest.mark.slow
def test_a_relation_finds_an_error_that_no_layer_finds(few):
    """One more rounding of large values is within the bound, but 4 V no longer gives 4 times the output."""

    def rounded(inputs, answer):
        loud = inputs.value.detach().abs().max() > 4
        return replace(answer, output=answer.output * (1 + 2.0**-22)) if loud else answer

    subject = small(changing(rounded))
    report = check_backend(subject, profile="quick")
    assert report.verdict == "NONCONFORMANT"
    found = next(found for found in report.findings if found.check == "R5 value_times_power")
    assert "when every value is multiplied by" in found.message
    assert replay(subject, case_of(found.case), check=found.check) == f"{found.check}: {found.message}"
    assert replay(small(), case_of(found.case), check=found.check) == "passed"
    assert {by_name(report)[name].status for name in LAYER_NAMES} == {"passed"}


def test_errors_found_while_shrinking_do_not_count_for_other_checks(reduce):
    evaluated = []

    def scores(case):
        evaluated.append(case)
        if len(evaluated) == 1:
            raise Violation("scores", "wrong")
        return 0.5

    def output(case):
        if len(evaluated) == 2:  # the case that failed, again and smaller: not drawn
            raise Violation("output", "wrong", got=1.21, want=0.0, bound=1.0)
        return 0.5

    layers = (Layer("scores", "A2", "", scores), Layer("output", "A2", "", output))
    reduce(relations=(), layers=layers, cells=lambda every: every[:2])
    report = check_backend(small(), profile="quick")
    rows = by_name(report)
    assert [rows[name].status for name in ("scores", "output")] == ["failed", "passed"]
    assert rows["output"].worst == 0.5


def test_relations_do_not_run_after_a_broken_contract(few):
    report = check_backend(small(lambda inputs, options: None), profile="quick", shrink_steps=0)
    statuses = {name: check.status for name, check in by_name(report).items()}
    assert statuses.pop("declaration") == "passed"
    assert (statuses.pop("contract"), statuses.pop("refusals")) == ("failed", "passed")
    assert statuses.keys() == {*LAYER_NAMES[1:], "relations"}
    assert set(statuses.values()) == {"not run"}


@pytest.mark.slow
def test_stop_at_first_ends_a_run_at_the_first_finding(few):
    mutant = MUTANTS["scale_one_percent"]
    first, whole = (
        check_backend(small(mutant.fresh()), profile="quick", stop_at_first=stop, shrink_steps=0) for stop in (True, False)
    )
    assert [found.check for found in first.findings] == ["scores"]
    assert {"scores", "R5 value_times_power"} > {found.check for found in first.findings}
    assert sum(check.examples for check in first.checks) < sum(check.examples for check in whole.checks)
    assert first.missing
    assert not whole.missing


@pytest.mark.slow
def test_one_seed_finds_the_same_failure_each_time(few):
    runs = [check_backend(small(MUTANTS["causal_one_too_few"].fresh()), profile="quick", stop_at_first=True) for _ in range(2)]
    assert without_clock(runs[0]) == without_clock(runs[1])


@pytest.mark.slow
def test_a_grade_is_reported_and_a_missed_declared_grade_is_a_finding(reduce):
    reduce(relations=(), cells=lambda every: every[:1])
    wide = {
        "head_dim": Range(maximum=8),
        "query_length": Range(maximum=16),
        "key_length": Range(maximum=256),
        "dtypes": {"bfloat16"},
    }
    inaccurate = MUTANTS["output_in_bfloat16"].fresh()
    report = check_backend(small(inaccurate, declaring(**wide)), profile="quick")
    assert report.grades["bfloat16"].startswith(("B (", "C ("))
    promised = declaring(**wide, numerics=Numerics(tf32=True, grade="A"))
    broken = check_backend(small(inaccurate, promised), profile="quick")
    assert "grade" in [found.check for found in broken.findings]
    small_promise = declaring(numerics=Numerics(tf32=True, grade="A"))
    ungraded = check_backend(small(can=small_promise), profile="quick")
    assert (by_name(ungraded)["grade"].status, ungraded.verdict) == ("not run", "INCOMPLETE")


@pytest.mark.slow
def test_a_mutant_that_does_not_explain_every_finding_is_not_named(few, monkeypatch):
    mutant = MUTANTS["causal_one_too_many"].fresh()

    def attend(inputs, options):
        answer = mutant(inputs, options)
        return answer if inputs.mask.causal else replace(answer, output=1.37 * answer.output)

    def names():
        return {found.check: found.looks_like for found in check_backend(small(attend), profile="quick").findings}

    found = names()
    assert {"support", "R19 later_keys"} <= found.keys()
    assert set(found.values()) == {""}
    monkeypatch.setattr("tfkit_conformance.suite.runner.explains", lambda *given: True)
    assert names()["R19 later_keys"] == MUTANTS["causal_one_too_many"].summary
