"""A search shrinks what fails, in bounded time, and tells a hanging evaluate and one that does not always fail."""

from __future__ import annotations

import random
import signal
import threading
import time

import pytest
import torch
from hypothesis import strategies as st

from tfkit.builtin.attention.entries import EAGER
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.strategies import cases
from tfkit_conformance.finding import Inconclusive, OutOfTime, Violation
from tfkit_conformance.limit import time_limit
from tfkit_conformance.search import search

CALLS = cases(backend_under_test(EAGER), "float32")
NUMBERS = st.integers(0, 1000)


def failing(check, when):
    """A evaluate that fails where `when` says so."""

    def evaluate(drawn):
        if when(drawn):
            raise Violation(check, f"{drawn} is wrong")

    return evaluate


@pytest.mark.slow
def test_a_failure_is_shrunk_to_the_smallest_case():
    found = search(CALLS, failing("support", lambda case: case.K >= 5 and case.causal), examples=100, seed=0)
    assert found.case == Case(K=5, causal=True, offset=0, gradients=True)
    assert found.violation.check == "support"
    assert found.stable
    assert found.first.K >= 5
    assert found.first.causal


def test_a_search_without_failures_finds_nothing():
    found = search(NUMBERS, failing("x", lambda number: False), examples=25, seed=0)
    assert (found.examples, found.case, found.first, found.violation, found.stable) == (25, None, None, None, True)


def test_shrinking_evaluates_no_more_cases_than_its_steps():
    evaluated = []

    def evaluate(number):
        evaluated.append(number)
        if number > 3:
            raise Violation("x", "wrong")

    found = search(st.integers(0, 2**60), evaluate, examples=50, seed=1, shrink_steps=7)
    first = next(index for index, number in enumerate(evaluated) if number > 3)
    assert len(evaluated) == first + 1 + 7
    assert found.case in evaluated
    assert found.case > 3
    assert found.violation.message == "wrong"
    assert found.stable


@pytest.mark.slow
def test_a_slow_machine_shrinks_to_the_same_case(monkeypatch):
    def searched(clock):
        monkeypatch.setattr(time, "monotonic", clock)
        found = search(CALLS, failing("x", lambda case: case.K > 8 and case.Q > 2), examples=60, seed=3)
        return found.case, found.failures

    seconds = iter(range(10**9))
    real = time.monotonic
    assert searched(lambda: real() + 50.0 * next(seconds)) == searched(real)


def test_without_shrinking_the_first_failure_is_kept():
    evaluated = []

    def evaluate(number):
        evaluated.append(number)
        if number > 3:
            raise Violation("x", "wrong")

    found = search(st.integers(0, 2**60), evaluate, examples=50, seed=1, shrink_steps=0)
    assert found.case == found.first == next(number for number in evaluated if number > 3)


def test_a_failure_that_does_not_repeat_is_unstable():
    calls = []

    def evaluate(number):
        calls.append(number)
        if len(calls) == 4:
            raise Violation("flaky", "once")

    found = search(NUMBERS, evaluate, examples=20, seed=0)
    assert not found.stable
    assert (found.violation.check, found.violation.message) == ("flaky", "once")
    assert found.case == calls[3]


def test_a_reported_check_is_not_shrunk_and_the_search_continues():
    evaluated = []

    def evaluate(number):
        evaluated.append(number)
        raise Violation("told", "again")

    found = search(NUMBERS, evaluate, examples=30, seed=0, reported=frozenset({"told"}))
    assert found.violation is None
    assert found.examples == len(evaluated) == 30

    found = search(
        NUMBERS, lambda number: failing("told" if number < 100 else "new", lambda number: True)(number),
        examples=30, seed=0, reported=frozenset({"told"}),
    )  # fmt: skip
    assert (found.violation.check, found.case) == ("new", 100)


def test_shrinking_keeps_to_one_failure():
    def evaluate(number):
        if number >= 200:
            raise Violation("large", "wrong")
        if number >= 10:
            raise Violation("middling", "wrong too")

    seen = {search(NUMBERS, evaluate, examples=40, seed=start).violation.check for start in range(6)}
    assert seen == {"large", "middling"}
    for start in range(6):
        found = search(NUMBERS, evaluate, examples=40, seed=start)
        assert found.case == {"large": 200, "middling": 10}[found.violation.check]


def test_inconclusive_cases_are_counted():
    def evaluate(number):
        if number % 2:
            raise Inconclusive("odd")

    found = search(NUMBERS, evaluate, examples=40, seed=0)
    assert 0 < len(found.inconclusive) < 40
    assert set(found.inconclusive) == {"odd"}
    assert found.examples == 40


def test_other_exceptions_are_raised():
    def evaluate(number):
        raise ZeroDivisionError("a bug of a check")

    with pytest.raises(ZeroDivisionError):
        search(NUMBERS, evaluate, examples=5, seed=0)


def test_an_empty_strategy_runs_nothing():
    found = search(NUMBERS.filter(lambda number: False), failing("x", lambda number: True), examples=5, seed=0)
    assert (found.examples, found.violation) == (0, None)


def test_a_seed_draws_the_same_and_another_seed_other_cases():
    def drawn(seed):
        kept = []
        search(CALLS, kept.append, examples=12, seed=seed)
        return kept

    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)


def test_a_search_leaves_the_generators_alone():
    before = random.getstate(), torch.get_rng_state()
    search(CALLS, failing("x", lambda case: case.K > 3), examples=20, seed=0, shrink_steps=30)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_check_that_hangs_is_a_violation():
    evaluated = []

    def evaluate(number):
        evaluated.append(number)
        time.sleep(60)

    found = search(NUMBERS, evaluate, examples=3, seed=0, limit=0.1)
    assert len(evaluated) == 1, "a hanging case is not shrunk"
    assert isinstance(found.violation, OutOfTime)
    assert (found.violation.check, found.violation.message) == ("contract", "did not finish within 0.1 seconds")


def test_a_check_that_hangs_ends_the_search_though_its_check_is_reported():
    evaluated = []

    def evaluate(number):
        evaluated.append(number)
        time.sleep(60)

    found = search(NUMBERS, evaluate, examples=10, seed=0, limit=0.1, shrink_steps=0, reported=frozenset({"contract"}))
    assert isinstance(found.violation, OutOfTime)
    assert len(evaluated) < 4


def test_a_time_limit_restores_the_signal_handler():
    def mine(number, frame):
        raise AssertionError("the alarm of another")

    before = signal.signal(signal.SIGALRM, mine)
    try:
        with pytest.raises(OutOfTime), time_limit(0.05):
            time.sleep(10)
        assert signal.getsignal(signal.SIGALRM) is mine
        with time_limit(1000):
            pass
        assert signal.getsignal(signal.SIGALRM) is mine
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        time.sleep(0.1)
        with pytest.raises(KeyError), time_limit(1000):
            raise KeyError("its own")
        assert signal.getsignal(signal.SIGALRM) is mine
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
def test_a_thread_has_no_time_limit():
    said = []

    def work():
        with time_limit(0.01):
            time.sleep(0.05)
        said.append(search(NUMBERS, failing("x", lambda number: number > 7), examples=40, seed=0, limit=0.01).case)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == [8]
