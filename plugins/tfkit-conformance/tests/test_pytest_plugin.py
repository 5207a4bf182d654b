"""The checks as pytest items of a plugin's author."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import reported
from tfkit import Diagnostic, InputError
from tfkit_conformance.process import parent
from tfkit_conformance.report import CheckResult

pytest_plugins = ["pytester"]

NAMES = ["contract", "support", "output"]


@pytest.fixture
def evaluating(pytester, monkeypatch):
    """A run in which every part is said to be as in this data; the runs of the suite that were asked for."""

    def run(data, *words, names=NAMES):
        asked = []

        def evaluated(task):
            asked.append(task)
            if isinstance(data, Exception):
                raise data
            return data

        monkeypatch.setattr(parent, "evaluated", evaluated)
        monkeypatch.setattr(parent, "checks_of", lambda parts, dtypes: [names for _ in parts])
        return pytester.runpytest_inprocess(*LOADED, "-p", "no:cacheprovider", "--strict-markers", *words), asked

    return run


INSTALLED = any(point.value == "tfkit_conformance.pytest_plugin" for point in entry_points(group="pytest11"))
LOADED = () if INSTALLED else ("-p", "tfkit_conformance.pytest_plugin")


def test_one_item_per_check_and_one_run_per_part(evaluating):
    result, asked = evaluating(
        reported.right(),
        "-v",
        "--tfkit-backend=acme.flash",
        "--tfkit-part=norm:acme.norm",
        "--tfkit-seed=3",
        names=["contract", "output"],
    )
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(
        [
            "*collected 8 items",
            "tfkit::acme.flash::contract PASSED*",
            "tfkit::acme.flash::ledger PASSED*",
            "tfkit::acme.norm::process PASSED*",
        ]
    )
    usual = {"profile": "quick", "device": "cpu", "dtypes": None, "options": None, "seed": 3, "limit": 60.0}
    assert asked == [{"slot": "backend", "name": "acme.flash", **usual}, {"slot": "norm", "name": "acme.norm", **usual}]


def test_a_failure_shows_words_numbers_and_python_and_no_stack(evaluating):
    result, _ = evaluating(reported.wrong(), "--tfkit-backend=acme.flash")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*support of acme.flash*", "query row 3 of batch row 1 sees key 17; it must not",
            "output[[]1, 0, 3, 2[]]: got 0.5, the reference 0.25, allowed error 1e-06", "looks like: causal limit off by one",
            "from tfkit_conformance import Case, replay", "FAILED tfkit::acme.flash::support*",
        ]
    )  # fmt: skip
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_a_missing_cell_fails_the_ledger(evaluating):
    result, _ = evaluating(reported.incomplete(), "--tfkit-backend=acme.flash", names=["contract", "output"])
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["declared, but not exercised:", "*mask pair: causal + window (float32 0, bfloat16 3)"])


def test_an_absent_device_skips_and_never_passes(evaluating):
    result, _ = evaluating(reported.absent(), "-rs", "--tfkit-backend=acme.flash", names=[*NAMES, "grade"])
    result.assert_outcomes(passed=1, skipped=5)  # that its process lived is all that was seen
    result.stdout.fnmatch_lines(["SKIPPED*not run: there is no device cuda:3 here"])


def test_an_inconclusive_check_fails(evaluating):
    checks = CheckResult("contract", "A1", "", "passed", 3), CheckResult("support", "A4", "", "inconclusive", 3)
    result, _ = evaluating(reported.report(*checks), "--tfkit-backend=acme.flash", names=NAMES[:2])
    result.assert_outcomes(passed=3, failed=1)


def died():
    return reported.report(
        CheckResult("layers", "A1", "", "failed", 3),
        ledger=(),
        findings=(reported.FINDING.__class__("layers", "A1", "the backend killed the process (SIGSEGV)"),),
    )


def test_a_part_that_kills_its_process_fails_one_item(evaluating):
    result, asked = evaluating(died(), "--tfkit-backend=acme.flash")
    result.assert_outcomes(failed=1, skipped=4)
    result.stdout.fnmatch_lines(["layers: the backend killed the process (SIGSEGV)"])
    assert len(asked) == 1


def test_a_single_selected_item_fails_too(evaluating):
    result, _ = evaluating(died(), "--tfkit-backend=acme.flash", "-k", "support")
    result.assert_outcomes(failed=1, deselected=4)
    result.stdout.fnmatch_lines(["not evaluated, because layers failed: the backend killed the process (SIGSEGV)"])


def test_the_marker_selects(evaluating, pytester):
    pytester.makepyfile("def test_own(): pass")
    result, _ = evaluating(reported.right(), "-m", "tfkit_conformance", "--tfkit-backend=acme.flash", names=["contract"])
    result.assert_outcomes(passed=3, deselected=1)
    result, asked = evaluating(
        reported.right(), "-m", "not tfkit_conformance", "--tfkit-backend=acme.flash", names=["contract"]
    )
    result.assert_outcomes(passed=1, deselected=3)
    assert asked == []


def test_an_error_of_the_run_fails_every_item(evaluating):
    result, asked = evaluating(InputError(Diagnostic("TFK053", "cannot be imported")), "--tfkit-backend=acme.flash")
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines(["TFK053 cannot be imported"])
    assert len(asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--tfkit-part=norm", "--tfkit-part is written SLOT:NAME, for instance position:acme.rope; `norm` is written"),
        ("--tfkit-backend=egaer", "TFK094 there is no attention backend `egaer`; did you mean `eager`?"),
        ("--tfkit-backend=eager --tfkit-profile=quik", "TFK094 there is no profile `quik`*"),
        ("--tfkit-backend=eager --tfkit-device=gpu", "--tfkit-device: unknown device `gpu`; write cpu, cuda or cuda:1"),
        ("--tfkit-backend=eager --tfkit-limit=0", "--tfkit-limit: seconds from 0.1 to 86400 are expected, 0 is written"),
    ],
)
def test_wrong_options(pytester, word, message):
    result = pytester.runpytest_inprocess(*LOADED, *word.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


@pytest.mark.slow
def test_a_part_from_end_to_end(pytester):
    result = pytester.runpytest_subprocess(
        *LOADED, "--strict-markers", "-p", "no:cacheprovider", "--tfkit-part=norm:none", "--tfkit-dtype=float32"
    )
    outcomes = result.parseoutcomes()
    assert result.ret == 0
    assert outcomes["passed"] >= 10
    assert outcomes.keys() == {"passed"}


@pytest.mark.slow
def test_the_plugin_imports_nothing_without_an_option(pytester):
    pytester.makepyfile("def test_own(): pass")
    words = f"import pytest, sys; code = pytest.main({['-q', '-p', 'no:cacheprovider', *LOADED]}); "
    words += "heavy = {name for name in sys.modules if name in ('torch', 'pydantic') or name.startswith('tfkit')}; "
    words += "print(int(code), sorted(heavy))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert (
        done.stdout.splitlines()[-1]
        == "0 ['tfkit', 'tfkit.lazy_names', 'tfkit_conformance', 'tfkit_conformance.pytest_plugin']"
    )
