"""A run of the suite: what is right is CONFORMANT, what is wrong is reported with its smallest case, what was not tried leaves
it INCOMPLETE."""

from __future__ import annotations

import contextlib
import io
import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from small_backend import SMALL, changing, declaring, small
from tfkit.attention.capabilities import Device, Numerics, Range
from tfkit.builtin.attention.entries import EAGER
from tfkit.errors import InputError
from tfkit_conformance.attention import cells
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.case_data import case_of
from tfkit_conformance.attention.cells import Cell
from tfkit_conformance.finding import Violation
from tfkit_conformance.mutants import ATTENTION_MUTANTS
from tfkit_conformance.mutants.kernel import entry_of
from tfkit_conformance.mutants.kernel.kernel import Kernel
from tfkit_conformance.relations import RELATIONS
from tfkit_conformance.resolve import resolve
from tfkit_conformance.suite import by_cell, by_relation
from tfkit_conformance.suite.again import replay
from tfkit_conformance.suite.conformance import check_backend
from tfkit_conformance.suite.layers import LAYERS, Layer

MUTANTS = {mutant.name: mutant for mutant in ATTENTION_MUTANTS}
NAMES = [layer.name for layer in LAYERS]


@pytest.fixture
def few(monkeypatch):
    """Three relations in place of all, which is quick."""
    wanted = ("value_times_power", "later_keys", "keys_moved")
    monkeypatch.setattr(by_relation, "RELATIONS", tuple(each for each in RELATIONS if each.name in wanted))


def by_name(report):
    return {check.name: check for check in report.checks}


@pytest.mark.slow
def test_a_right_backend_is_conformant():
    report = check_backend(small(), profile="quick")
    assert report.findings == ()
    assert (report.verdict, report.exit_code) == ("CONFORMANT", 0)
    assert (report.slot, report.name, report.device, report.dtypes, report.profile) == (
        "backend",
        "small",
        "cpu",
        ("float32",),
        "quick",
    )
    checks = by_name(report)
    assert [check for check in checks if check in NAMES] == NAMES
    assert set(checks) == {"declaration", *NAMES, "refusals", *(each.label for each in RELATIONS), "grade"}
    for name in NAMES:
        assert checks[name].status == "passed"
        assert checks[name].examples >= 2 * len(report.ledger)
    assert {check.status for check in report.checks} == {"passed", "not applicable"}
    assert all(check.note for check in report.checks if check.status == "not applicable")
    assert checks["grade"].note == "the declaration accepts none of the sizes that are graded"
    assert checks["R24 keys_moved"].examples >= 3
    assert all(0 < checks[name].worst <= 1 for name in ("scores", "output", "gradients"))
    assert {(row.group, row.cell) for row in report.ledger} == {(cell.group, cell.name) for cell in cells.cells(SMALL, True)}
    assert all(row.counts["float32"] >= 2 for row in report.ledger)
    report.raise_for_failures()
    assert report.as_data()["verdict"] == "CONFORMANT"


@pytest.mark.slow
def test_a_backend_that_decodes_only_is_conformant_too(few):
    """One query, and none of the shapes and sizes that need more."""
    report = check_backend(small(can=declaring(query_length=Range(maximum=1), key_length=Range())), profile="quick")
    assert report.missing == ()
    assert report.verdict == "CONFORMANT"
    assert report.grades["float32"].startswith(("A (", "B ("))


@pytest.mark.slow
def test_a_wrong_mask_is_reported_with_the_smallest_case_and_by_its_name(few):
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
    said, names = io.StringIO(), {"subject": subject}
    with contextlib.redirect_stdout(said):
        exec(code, names)
    assert said.getvalue() == f"support: {found.message}\n"
    assert names["inputs"].key.shape == (1, 1, smallest.K, 8)
    assert names["grad_output"].shape == (1, 1, smallest.Q, 8)

    with pytest.raises(Violation, match="support: query row 0") as raised:
        report.raise_for_failures()
    assert (raised.value.check, raised.value.index) == ("support", (0, 0, 0, 1))


def test_a_replay_of_no_check_or_no_backend_is_refused(catalogue):
    case = Case(K=2)
    with pytest.raises(InputError, match=r"TFK095.*there is no check `suport` to run again.*checks: contract, support"):
        replay(small(), case, check="suport")
    with pytest.raises(InputError, match=r"TFK094.*there is no attention backend `egaer`.*did you mean `eager`"):
        replay("egaer", case, catalogue=catalogue)
    assert replay("eager", replace(case, causal=True, offset=0), check="R19 later_keys", catalogue=catalogue) == "passed"


@pytest.mark.slow
def test_a_relation_tells_what_no_layer_sees(few):
    """A rounding more where values are large is well within the bound; but 4 V no longer gives 4 times the output."""

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
    assert {by_name(report)[name].status for name in NAMES} == {"passed"}


def test_what_another_check_fails_on_while_one_is_shrunk_is_not_in_its_row(monkeypatch):
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
    monkeypatch.setattr(by_cell, "LAYERS", layers)
    monkeypatch.setattr(by_cell, "cells", lambda can, gradients: cells.cells(can, gradients)[:2])
    monkeypatch.setattr(by_relation, "RELATIONS", ())
    report = check_backend(small(), profile="quick")
    rows = by_name(report)
    assert [rows[name].status for name in ("scores", "output")] == ["failed", "passed"]
    assert rows["output"].worst == 0.5


@pytest.mark.slow
def test_where_every_call_is_refused_nothing_has_passed(few, monkeypatch):
    monkeypatch.setattr(by_cell, "cells", lambda can, gradients: cells.cells(can, gradients)[:4])
    report = check_backend(small(unsupported=lambda request, options: ("not on a Sunday",)), profile="quick")
    assert (report.verdict, report.exit_code) == ("INCOMPLETE", 3)
    assert {by_name(report)[name].status for name in NAMES} == {"not run"}
    assert {row.refused for row in report.ledger} == {"not on a Sunday"}
    assert by_name(report)["R5 value_times_power"].status == "not applicable"


@pytest.mark.slow
def test_what_is_refused_in_one_dtype_is_evaluated_in_the_others(few, monkeypatch):
    monkeypatch.setattr(by_cell, "cells", lambda can, gradients: cells.cells(can, gradients)[:8])

    def not_in_double(request, options):
        return ("no float64",) if request.dtype == "float64" else ()

    can = declaring(dtypes={"float64", "float32"})
    report = check_backend(small(can=can, unsupported=not_in_double), profile="quick", dtypes=["float64", "float32"])
    assert report.dtypes == ("float64", "float32")
    assert {tuple(row.counts) for row in report.ledger} == {("float32",)}
    assert all(row.counts["float32"] >= 2 and not row.refused for row in report.ledger)
    assert report.verdict == "CONFORMANT"
    wrong = small(MUTANTS["causal_one_too_many"].fresh(), can, unsupported=not_in_double)
    assert (
        check_backend(wrong, profile="quick", dtypes=["float64", "float32"], stop_at_first=True).findings[0].check == "support"
    )


@pytest.mark.slow
def test_a_cell_that_nothing_meets_makes_a_run_incomplete(few, monkeypatch):
    unmet = Cell("bias", "gradient of no bias", (("bias_gradient", True),))
    monkeypatch.setattr(by_cell, "cells", lambda can, gradients: [*cells.cells(can, gradients)[:3], unmet])
    report = check_backend(small(), profile="quick")
    assert (report.verdict, report.exit_code) == ("INCOMPLETE", 3)
    (row,) = report.missing
    assert (row.group, row.cell, row.counts, row.refused) == ("bias", "gradient of no bias", {"float32": 0}, "")
    assert report.findings == ()


@pytest.mark.slow
def test_a_cell_that_the_declaration_excludes_by_itself_is_not_missing(few):
    def no_single_key(request, options):
        return ("one key alone is not worth a kernel",) if request.keys == 1 else ()

    report = check_backend(small(unsupported=no_single_key), profile="quick")
    row = next(row for row in report.ledger if row.cell == "K = 1")
    assert (row.counts, row.refused) == ({"float32": 0}, "one key alone is not worth a kernel")
    assert report.verdict == "CONFORMANT"


def test_an_absent_device_passes_nothing():
    entry = entry_of("gpu", "for CUDA", declaring(devices=(Device(kind="cpu"), Device(kind="cuda"))))
    report = check_backend(backend_under_test(entry, device="cuda:97", attend=Kernel()), profile="quick")
    assert (report.device, report.verdict, report.exit_code) == ("cuda:97", "INCOMPLETE", 3)
    checks = by_name(report)
    assert [checks[name].status for name in NAMES] == ["not run"] * len(NAMES)
    assert {checks[name].note for name in NAMES} == {"not run: there is no device cuda:97 here"}
    assert [name for name, check in checks.items() if check.status == "passed"] == ["declaration"]


def test_a_device_that_is_not_declared_passes_nothing():
    entry = entry_of("gpu", "for CUDA alone", declaring(devices=(Device(kind="cuda"),)))
    report = check_backend(entry, profile="quick")
    assert report.verdict == "INCOMPLETE"
    assert by_name(report)["support"].note == "not run: cpu is not among its declared devices"


@pytest.mark.slow
def test_a_dtype_that_is_not_declared_is_not_evaluated(few):
    report = check_backend(small(), profile="quick", dtypes=iter(["float32", "bfloat16"]))
    assert (report.dtypes, report.verdict) == (("float32",), "INCOMPLETE")
    check = by_name(report)["layers in bfloat16"]
    assert (check.status, check.note) == ("not run", "bfloat16 is not declared")
    assert by_name(report)["support"].status == "passed"
    alone = check_backend(small(), profile="quick", dtypes=["bfloat16"])
    assert (alone.dtypes, alone.verdict) == ((), "INCOMPLETE")


def test_dtypes_are_those_of_the_profile_or_those_asked_for(few):
    can = declaring(dtypes={"float32", "float64", "bfloat16"})
    wrong = small(lambda inputs, options: None, can)
    assert check_backend(wrong, profile="quick", stop_at_first=True).dtypes == ("float32", "bfloat16")
    assert check_backend(wrong, profile="standard", stop_at_first=True).dtypes == ("float64", "float32", "bfloat16")
    assert check_backend(wrong, profile="quick", dtypes=["float64"], stop_at_first=True).dtypes == ("float64",)


def test_what_breaks_the_contract_is_not_compared(few):
    report = check_backend(small(lambda inputs, options: None), profile="quick", shrink_steps=0)
    statuses = {name: check.status for name, check in by_name(report).items()}
    assert statuses.pop("declaration") == "passed"
    assert (statuses.pop("contract"), statuses.pop("refusals")) == ("failed", "passed")
    assert statuses.keys() == {*NAMES[1:], "relations"}
    assert set(statuses.values()) == {"not run"}


@pytest.mark.slow
def test_the_first_finding_can_end_a_run(few):
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
def test_events_tell_what_is_about_to_run(few):
    """Whoever watches the process learns of an example before the backend does."""
    told = []

    def attend(inputs, options):
        told.append("call")
        return Kernel()(inputs)

    check_backend(small(attend, declaring(backward=False, deterministic_backward=False)), profile="quick",
                  event=lambda check, case: told.append((check, case)))  # fmt: skip
    events = [event for event in told if event != "call"]
    assert told[0] != "call"
    assert {check for check, case in events if case is None} == {"refusals float32", "grade float32"}
    assert {check for check, case in events if isinstance(case, Case)} == {
        "refusals", "layers", "R5 value_times_power", "R19 later_keys", "R24 keys_moved",
    }  # fmt: skip
    before_layers = [after for event, after in pairwise(told) if event != "call" and event[0] == "layers"]
    assert set(before_layers) == {"call"}


def said(report):
    """A report without its clock."""
    data = report.as_data()
    return {**data, "seconds": 0, "checks": [{**check, "seconds": 0} for check in data["checks"]]}


@pytest.mark.slow
def test_a_seed_gives_the_same_report_and_another_seed_draws_other_cases(few):
    def evaluated(seed):
        drawn = []
        report = check_backend(small(), profile="quick", seed=seed, event=lambda check, case: drawn.append(case))
        return said(report), drawn

    (first, cases), (again, same), (other, others) = evaluated(0), evaluated(0), evaluated(1)
    assert first == again
    assert cases == same
    assert cases != others
    assert (first["verdict"], other["verdict"], other["seed"]) == ("CONFORMANT", "CONFORMANT", 1)


@pytest.mark.slow
def test_a_failure_is_found_alike_under_one_seed(few):
    runs = [check_backend(small(MUTANTS["causal_one_too_few"].fresh()), profile="quick", stop_at_first=True) for _ in range(2)]
    assert said(runs[0]) == said(runs[1])


def test_torch_is_left_as_it_was(few):
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


def test_torch_is_left_as_it_was_whatever_the_backend_does(few):
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
def test_what_does_not_exist_cannot_be_asked_for(wrong, words):
    with pytest.raises(InputError, match="TFK094") as raised:
        check_backend(small(), **wrong)
    assert words in str(raised.value)


def test_a_backend_comes_by_name_by_entry_or_as_a_subject(catalogue, few, monkeypatch):
    monkeypatch.setattr(by_cell, "cells", lambda can, gradients: cells.cells(can, gradients)[:2])
    report = check_backend("sdpa", profile="quick", dtypes=["float32"], catalogue=catalogue, options={"kernel": "math"})
    assert (report.verdict, report.name, report.distribution) == ("CONFORMANT", "sdpa", "tfkit")
    assert report.options == {"kernel": "math"}
    assert set(report.versions) >= {"tfkit", "torch", "python", "machine"}
    assert resolve(EAGER, None, "cpu", None)[0].name == "eager"
    for name in ("egaer", "auto"):
        with pytest.raises(InputError, match=f"TFK094.*there is no attention backend `{name}`"):
            check_backend(name, catalogue=catalogue)
    with pytest.raises(InputError, match=r"TFK094.*there is no device `cpu;`"):
        check_backend("eager", device="cpu;", catalogue=catalogue)


@pytest.mark.slow
def test_a_grade_is_reported_and_a_broken_promise_is_a_finding(monkeypatch):
    monkeypatch.setattr(by_relation, "RELATIONS", ())
    monkeypatch.setattr(by_cell, "cells", lambda can, gradients: cells.cells(can, gradients)[:1])
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
    untold = check_backend(small(can=small_promise), profile="quick")
    assert (by_name(untold)["grade"].status, untold.verdict) == ("not run", "INCOMPLETE")
