"""The arguments of `check_backend`: dtypes, seed, event, backend. A run leaves torch's settings as they were."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from small_backend import declaring, small
from suite_reports import without_clock
from tfkit import InputError
from tfkit.builtin.attention.entries import EAGER
from tfkit_conformance.attention.case import Case
from tfkit_conformance.mutants.kernel.kernel import Kernel
from tfkit_conformance.resolve import resolve
from tfkit_conformance.suite.conformance import check_backend


def test_dtypes_come_from_the_profile_or_the_argument(few):
    can = declaring(dtypes={"float32", "float64", "bfloat16"})
    wrong = small(lambda inputs, options: None, can)
    assert check_backend(wrong, profile="quick", stop_at_first=True).dtypes == ("float32", "bfloat16")
    assert check_backend(wrong, profile="standard", stop_at_first=True).dtypes == ("float64", "float32", "bfloat16")
    assert check_backend(wrong, profile="quick", dtypes=["float64"], stop_at_first=True).dtypes == ("float64",)


@pytest.mark.slow
def test_an_event_precedes_each_example(few):
    """The parent process knows of an example before the backend gets it."""
    seen = []

    def attend(inputs, options):
        seen.append("call")
        return Kernel()(inputs)

    check_backend(small(attend, declaring(backward=False, deterministic_backward=False)), profile="quick",
                  event=lambda check, case: seen.append((check, case)))  # fmt: skip
    events = [event for event in seen if event != "call"]
    assert seen[0] != "call"
    assert {check for check, case in events if case is None} == {"refusals float32", "fixed calls float32", "grade float32"}
    assert {check for check, case in events if isinstance(case, Case)} == {
        "refusals", "layers", "guided calls", "R5 value_times_power", "R19 later_keys", "R24 keys_moved",
    }  # fmt: skip
    before_layers = [after for event, after in pairwise(seen) if event != "call" and event[0] == "layers"]
    assert set(before_layers) == {"call"}


@pytest.mark.slow
def test_one_seed_gives_one_report_and_another_seed_other_cases(few):
    def evaluated(seed):
        drawn = []
        report = check_backend(small(), profile="quick", seed=seed, event=lambda check, case: drawn.append(case))
        return without_clock(report), drawn

    (first, cases), (again, same), (other, others) = evaluated(0), evaluated(0), evaluated(1)
    assert first == again
    assert cases == same
    assert cases != others
    assert (first["verdict"], other["verdict"], other["seed"]) == ("CONFORMANT", "CONFORMANT", 1)


def test_a_run_restores_the_settings_of_torch(few):
    seen = []

    def attend(inputs, options):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return

    before = torch.get_rng_state(), random.getstate()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        check_backend(small(attend), profile="quick", stop_at_first=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen
    assert not any(seen)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_a_run_restores_settings_that_the_backend_changed(few):
    def attend(inputs, options):
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(3)

    before = torch.get_rng_state()
    check_backend(small(attend), profile="quick", stop_at_first=True)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"profile": "quik"}, "there is no profile `quik`; profiles: quick, standard, deep"),
        ({"dtypes": ["float31"]}, "there is no dtype `float31`; dtypes: float64, float32"),
        ({"dtypes": "float32"}, "there is no dtype"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unknown_profile_or_dtype_is_an_error(wrong, words):
    with pytest.raises(InputError, match="TFK094") as raised:
        check_backend(small(), **wrong)
    assert words in str(raised.value)


@pytest.mark.slow
def test_a_backend_is_given_by_name_entry_or_subject(catalogue, few, reduce):
    reduce(cells=lambda every: every[:2])
    report = check_backend("sdpa", profile="quick", dtypes=["float32"], catalogue=catalogue, options={"kernel": "math"})
    assert (report.verdict, report.name, report.distribution) == ("CONFORMANT", "sdpa", "tfkit-core")
    assert report.options == {"kernel": "math"}
    assert set(report.versions) >= {"tfkit", "torch", "python", "machine"}
    assert resolve(EAGER, None, "cpu", None)[0].name == "eager"
    for name in ("egaer", "auto"):
        with pytest.raises(InputError, match=f"TFK094.*there is no attention backend `{name}`"):
            check_backend(name, catalogue=catalogue)
    with pytest.raises(InputError, match=r"TFK094.*there is no device `cpu;`"):
        check_backend("eager", device="cpu;", catalogue=catalogue)
