"""A correct backend is CONFORMANT; what was not tried leaves the report INCOMPLETE."""

from __future__ import annotations

import pytest

from small_backend import SMALL, declaring, small
from suite_reports import LAYER_NAMES, MUTANTS, by_name
from tfkit.plugin import Device, Range
from tfkit_conformance.attention import cells
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.cells import Cell
from tfkit_conformance.mutants.kernel import entry_of
from tfkit_conformance.mutants.kernel.kernel import Kernel
from tfkit_conformance.relations import RELATIONS
from tfkit_conformance.suite.conformance import check_backend


@pytest.mark.slow
def test_a_correct_backend_is_conformant():
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
    assert [check for check in checks if check in LAYER_NAMES] == LAYER_NAMES
    assert set(checks) == {
        "declaration",
        *LAYER_NAMES,
        "refusals",
        "fixed calls",
        "guided calls",
        *(each.label for each in RELATIONS),
        "grade",
    }
    for name in LAYER_NAMES:
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
def test_a_backend_for_decoding_only_is_conformant(few):
    """One query, and none of the shapes and sizes that need more."""
    report = check_backend(small(can=declaring(query_length=Range(maximum=1), key_length=Range())), profile="quick")
    assert report.missing == ()
    assert report.verdict == "CONFORMANT"
    assert report.grades["float32"].startswith(("A (", "B ("))


@pytest.mark.slow
def test_no_check_passes_if_every_call_is_refused(few, reduce):
    reduce(cells=lambda every: every[:4])
    report = check_backend(small(unsupported=lambda request, options: ("not on a Sunday",)), profile="quick")
    assert (report.verdict, report.exit_code) == ("INCOMPLETE", 3)
    assert {by_name(report)[name].status for name in LAYER_NAMES} == {"not run"}
    assert {row.refused for row in report.ledger} == {"not on a Sunday"}
    assert by_name(report)["R5 value_times_power"].status == "not applicable"


@pytest.mark.slow
def test_a_dtype_that_unsupported_refuses_does_not_hide_the_others(few, reduce):
    reduce(cells=lambda every: every[:8])

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
def test_a_cell_without_an_example_makes_a_run_incomplete(few, reduce):
    unmet = Cell("bias", "gradient of no bias", (("bias_gradient", True),))
    reduce(cells=lambda every: [*every[:3], unmet])
    report = check_backend(small(), profile="quick")
    assert (report.verdict, report.exit_code) == ("INCOMPLETE", 3)
    (row,) = report.missing
    assert (row.group, row.cell, row.counts, row.refused) == ("bias", "gradient of no bias", {"float32": 0}, "")
    assert report.findings == ()


@pytest.mark.slow
def test_a_cell_that_unsupported_excludes_is_not_missing(few):
    def no_single_key(request, options):
        return ("one key alone is not worth a kernel",) if request.keys == 1 else ()

    report = check_backend(small(unsupported=no_single_key), profile="quick")
    row = next(row for row in report.ledger if row.cell == "K = 1")
    assert (row.counts, row.refused) == ({"float32": 0}, "one key alone is not worth a kernel")
    assert report.verdict == "CONFORMANT"


def test_no_check_passes_on_a_missing_device():
    entry = entry_of("gpu", "for CUDA", declaring(devices=(Device(kind="cpu"), Device(kind="cuda"))))
    report = check_backend(backend_under_test(entry, device="cuda:97", attend=Kernel()), profile="quick")
    assert (report.device, report.verdict, report.exit_code) == ("cuda:97", "INCOMPLETE", 3)
    checks = by_name(report)
    assert [checks[name].status for name in LAYER_NAMES] == ["not run"] * len(LAYER_NAMES)
    assert {checks[name].note for name in LAYER_NAMES} == {"not run: there is no device cuda:97 here"}
    assert [name for name, check in checks.items() if check.status == "passed"] == ["declaration"]


def test_no_check_passes_on_an_undeclared_device():
    entry = entry_of("gpu", "for CUDA alone", declaring(devices=(Device(kind="cuda"),)))
    report = check_backend(entry, profile="quick")
    assert report.verdict == "INCOMPLETE"
    assert by_name(report)["support"].note == "not run: cpu is not among its declared devices"


@pytest.mark.slow
def test_an_undeclared_dtype_is_not_checked(few):
    report = check_backend(small(), profile="quick", dtypes=iter(["float32", "bfloat16"]))
    assert (report.dtypes, report.verdict) == (("float32",), "INCOMPLETE")
    check = by_name(report)["layers in bfloat16"]
    assert (check.status, check.note) == ("not run", "bfloat16 is not declared")
    assert by_name(report)["support"].status == "passed"
    alone = check_backend(small(), profile="quick", dtypes=["bfloat16"])
    assert (alone.dtypes, alone.verdict) == ((), "INCOMPLETE")
