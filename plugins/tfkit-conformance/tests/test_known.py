"""A known failure stays in every report: it must still fail, excuses only its own check, and is never conformant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from small_backend import changing, declaring, small
from tfkit.attention.backend import KnownFailure
from tfkit_conformance.attention.case import Case
from tfkit_conformance.mutants.kernel.kernel import Kernel
from tfkit_conformance.suite import by_relation
from tfkit_conformance.suite.conformance import check_backend
from tfkit_conformance.suite.known import is_known

WIDE = declaring(mask_terms={"causal", "window"})
WINDOWED = Case(Q=2, K=4, window=(1, 0), offset=1)


@pytest.fixture(autouse=True)
def no_relations(monkeypatch):
    """Only the layers are tried, which is quick."""
    monkeypatch.setattr(by_relation, "RELATIONS", ())


def windows_scaled(inputs, options):
    """Calls with a window get twice the scale: the weights are wrong, who sees whom is not."""
    return Kernel()(replace(inputs, scale=2 * inputs.scale) if inputs.mask.window else inputs)


def doubled(inputs, answer):
    return replace(answer, output=answer.output * 2)


def known(check="scores", case=WINDOWED, issue="", **where):
    return KnownFailure(check, "the scale is doubled with a window", case.as_data(), where or {"terms": ["window"]}, issue)


def run(attend, *failures, can=WIDE, **more):
    return check_backend(small(attend, can, known_failures=failures), profile="quick", **more)


def by_name(report):
    return {check.name: check for check in report.checks}


def test_without_being_reported_it_is_a_failure():
    report = run(windows_scaled, stop_at_first=True)
    assert report.verdict == "NONCONFORMANT"
    assert report.findings[0].check == "scores"


@pytest.mark.slow
def test_a_known_failure_alone_makes_a_report_incomplete_with_exit_code_3():
    failures = [known(check) for check in ("scores", "output", "gradients")]
    gradients = Case(Q=2, K=4, window=(1, 0), offset=1, gradients=True)
    failures[2] = known("gradients", gradients)
    report = run(windows_scaled, *failures)
    assert report.findings == ()
    assert (report.verdict, report.exit_code) == ("INCOMPLETE", 3)
    assert {name for name, check in by_name(report).items() if check.status == "known"} == {
        "known: scores", "known: output", "known: gradients", "scores", "output", "gradients",
    }  # fmt: skip
    assert report.missing == ()
    assert by_name(report)["known: scores"].summary == "the scale is doubled with a window"
    assert by_name(report)["support"].status == "passed"
    assert by_name(report)["scores"].examples > 10  # those without a window are evaluated


@pytest.mark.slow
def test_what_does_not_fail_any_more_is_an_error():
    report = run(Kernel(), known(issue="acme/flash#12"))
    assert (report.verdict, report.exit_code) == ("NONCONFORMANT", 1)
    (found,) = report.findings
    assert found.check == "scores"
    assert found.message == "the known failure in scores does not fail any more: remove it from `known_failures`"
    assert found.case == WINDOWED.as_data()
    assert by_name(report)["known: scores"].status == "failed"
    assert by_name(report)["known: scores"].summary == "the scale is doubled with a window (acme/flash#12)"


def test_where_excuses_its_own_check_only():
    report = run(windows_scaled, known("scores"), stop_at_first=True)
    assert report.verdict == "NONCONFORMANT"
    assert [found.check for found in report.findings] == ["output"]
    entry = small(Kernel(), WIDE, known_failures=(known("scores"),)).entry
    assert is_known(entry, "scores", WINDOWED)
    assert not is_known(entry, "output", WINDOWED)
    assert not is_known(entry, "scores", Case(Q=2, K=4, causal=True, offset=1))


def test_where_excuses_only_cases_with_all_its_features():
    narrow = known(terms=["window"], shape="Q < K")
    entry = small(Kernel(), WIDE, known_failures=(narrow,)).entry
    assert is_known(entry, "scores", WINDOWED)
    assert is_known(entry, "scores", Case(Q=2, K=4, window=(1, 0), causal=True, offset=1))
    assert not is_known(entry, "scores", Case(Q=4, K=4, window=(1, 0), offset=1))
    report = run(windows_scaled, narrow, stop_at_first=True)
    assert report.findings[0].check in ("scores", "output")
    assert report.verdict == "NONCONFORMANT"


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (known("scorse"), "a known failure that cannot be tried: there is no check `scorse` to run again"),
        (known(case=Case(Q=2, K=4)), "lacks the features in its `where`"),
        (known(masks=["window"]), "lacks the features in its `where`"),
        (known(terms=["causal"]), "lacks the features in its `where`"),
        (KnownFailure("scores", "why", {"window": [1]}, {}), "a known failure that cannot be tried: this is no stored case"),
        (KnownFailure("scores", "why", [1], {}), "a known failure that cannot be tried: this is no stored case"),
    ],
    ids=["no such check", "no window", "no such feature", "another term", "no case", "no mapping"],
)
def test_a_known_failure_that_means_nothing_is_a_finding(failure, words):
    report = run(changing(doubled), failure, stop_at_first=True)
    assert report.verdict == "NONCONFORMANT"
    assert words in report.findings[0].message
    assert by_name(report)[f"known: {failure.check}"].status == "failed"
