"""The words of a conformance report, on 80 columns."""

from contextlib import redirect_stdout
from io import StringIO

import reported
from kill_matrix.text import kill_matrix_text
from reported import BOUNDED, FINDING, PASSED, report
from tfkit.commands import print_rich
from tfkit_conformance.report import CheckResult, LedgerRow
from tfkit_conformance.view.conformance_text import conformance_text, replay_text, verdict_in_words


def flat(text):
    return " ".join(text.split())


def rows_of(text):
    """The table of checks: cells by check."""
    lines = text.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("check "))
    return {line.split()[0]: line.split()[1:] for line in lines[begin + 1 : lines.index("", begin)]}


def test_a_correct_part(drawn):
    text = drawn(*conformance_text(reported.right()))
    assert flat(text).startswith(
        "acme.flash of acme cpu, float32, bfloat16, profile quick, seed 7 tfkit 0.1.0, torch 2.13.0, suite 3"
    )
    assert rows_of(text) == {"contract": ["A1", "40", "passed", "0.2"], "output": ["A2", "40", "0.125", "passed", "1.0"]}
    assert "mask 1 of 1 float32 4, bfloat16 2" in flat(text)
    assert "accuracy: float32 A (1.00)" in text
    assert flat(text).endswith(
        "CONFORMANT on cpu for float32, bfloat16: acme.flash passed every check, and every declared feature was exercised "
        "exit code 0, 2 s"
    )
    assert "again" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_wrong_part_is_reported_in_words_numbers_and_python(drawn):
    text = drawn(*conformance_text(reported.wrong(), "report.json"))
    assert rows_of(text)["support"] == ["A4", "40", "FAILED", "0.5"]
    for part in (
        "FAILED support (A4), 3 of 40 examples",
        "query row 3 of batch row 1 sees key 17; it must not",
        "output[1, 0, 3, 2]: got 0.5, the reference 0.25, allowed error 1e-06",
        "looks like: causal limit off by one",
        "from tfkit_conformance import Case, replay",
        "tfkit conformance --replay report.json",
        "NONCONFORMANT on cpu for float32, bfloat16: 1 check failed: support exit code 1, 2 s",
    ):
        assert part in flat(text), part


def test_findings_with_the_same_message_are_shown_once(drawn):
    again = [FINDING.__class__(f"R{number}", "A1", FINDING.message) for number in range(6)]
    text = flat(drawn(*conformance_text(report(PASSED, findings=(FINDING, *again)))))
    assert text.count(FINDING.message) == 1
    assert "the same in R0, R1, R2 and 3 more" in text


def test_a_finding_without_a_case_has_no_replay(drawn):
    bare = FINDING.__class__("declaration", "A3", "`head_dim` is 8 to 4: no number is in it")
    assert "replay" not in drawn(*conformance_text(report(reported.FAILED, findings=(bare,))))


def test_every_missing_and_every_refused_cell_is_named(drawn):
    data = reported.incomplete()
    text = flat(drawn(*conformance_text(data)))
    assert "mask pair 0 of 1, 1 refused float32 0, bfloat16 3" in text
    assert "not exercised: mask pair: causal + window (float32 0, bfloat16 3)" in text
    assert "refused: mask pair: causal + segments: no segments beside causal" in text
    assert verdict_in_words(data) == (
        "INCOMPLETE", "on cpu for float32, bfloat16: 1 declared cell was not exercised: mask pair: causal + window",
    )  # fmt: skip


def test_a_verdict_names_the_dtypes_that_ran():
    """One that is refused in every cell was evaluated in none."""
    verdict, words = verdict_in_words(report(PASSED, ledger=(LedgerRow("mask", "causal", {"float32": 4}),)))
    assert verdict == "CONFORMANT"
    assert words.startswith("on cpu for float32: acme.flash passed every check")
    assert words.endswith("; bfloat16 is refused there")


def test_a_missing_device_is_not_run():
    data = reported.absent()
    assert verdict_in_words(data) == ("NOT RUN", "on cuda:3 for float32, bfloat16: there is no device cuda:3 here")
    assert data["exit_code"] == 3


def test_a_dtype_that_is_not_declared_is_named():
    checks = [CheckResult("contract", "A1", "", "not run"), CheckResult("layers in int8", "", "", "not run", note="no int8")]
    data = report(CheckResult("declaration", "A3", "", "passed", 1), *checks, dtypes=(), ledger=())
    assert verdict_in_words(data) == ("NOT RUN", "on cpu for no dtype: no int8")


def test_python_can_be_pasted():
    line = f"print({', '.join(str(number) for number in range(40))})"
    found = FINDING.__class__("support", "A4", "wrong", snippet=f"import this\n\n{line}\n")
    with redirect_stdout(StringIO()) as printed:
        print_rich(*conformance_text(report(reported.FAILED, findings=(found,))))
    assert f"\nimport this\n\n{line}\n" in printed.getvalue()


def test_the_reasons_of_an_incomplete_run_are_shown():
    open_ = CheckResult("output", "A2", "", "inconclusive", 4, note="4 inconclusive")
    verdict, words = verdict_in_words(report(PASSED, CheckResult("support", "A4", "", "not run"), open_))
    assert verdict == "INCOMPLETE"
    assert words.endswith("1 check inconclusive: output; 1 check not run: support")


def test_a_message_cannot_move_the_cursor(drawn):
    evil = FINDING.__class__("support", "A4", "raised \x1b[2J\x00")
    text = drawn(*conformance_text(report(reported.FAILED, findings=(evil,))))
    assert "\x1b" not in text
    assert "\x00" not in text


def test_nan_and_infinity_are_shown(drawn):
    odd = FINDING.__class__("support", "A4", "wrong", "output", (), "nan", 0.5, None)
    assert "output: got nan, the reference 0.5" in drawn(*conformance_text(report(reported.FAILED, findings=(odd,))))
    worst = CheckResult("output", "A2", "", "failed", 3, "inf")
    assert "inf" in drawn(*conformance_text(report(worst)))


def test_different_numbers_are_shown_with_enough_digits(drawn):
    near = FINDING.__class__("support", "A4", "wrong", "output", (), 0.25, 0.25000000001, 0.0)
    text = flat(drawn(*conformance_text(report(reported.FAILED, findings=(near,)))))
    assert "output: got 0.25, the reference 0.25000000001, allowed error 0 " in text


def test_long_rules_of_laws_are_wrapped(drawn):
    rule = "R36: norm(a x) = norm(x), up to the effect of eps, for every a above zero and for every x"
    text = drawn(*conformance_text(report(CheckResult("scale_invariant", rule, rule, "passed", 12, 0.5, 0.1), BOUNDED)))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(word in text for word in rule.split())


def test_replays(drawn):
    usual = {"slot": "backend", "name": "acme.flash", "device": "cpu", "was": "was wrong"}
    rows = [
        {**usual, "check": "support", "now": "passed", "status": "passed"},
        {**usual, "check": "output", "now": "output: still off", "status": "failed"},
        {**usual, "check": "", "now": "inconclusive: large", "status": "inconclusive"},
        {**usual, "check": "R29 fully_masked_rows", "now": "R29 fully_masked_rows: was wrong", "status": "failed"},
        {**usual, "check": "support", "now": "refused: no window", "status": "refused"},
    ]
    text = flat(drawn(*replay_text({"replayed": rows, "exit_code": 1})))
    assert "passes now support of acme.flash on cpu then: was wrong still fails" in text
    assert "then: was wrong now: still off" in text
    assert "still fails R29 fully_masked_rows of acme.flash on cpu then and now: was wrong refused now support" in text
    assert "then: was wrong now: no window" in text
    assert "now: large" in text
    assert "inconclusive all layers of acme.flash" in text
    assert text.endswith("2 of 5 still fail, 1 pass, 1 refused by the declaration, 1 could not be evaluated (exit code 1)")


KILL_MATRIX = {
    "profile": "quick", "seeds": [0, 1], "seconds": 12.0, "exit_code": 1, "kills": {"support": 2, "output": 1},
    "mutants": [
        {"name": "causal_off_by_one", "family": "masks", "summary": "j <= i + 1", "killed_by": ["support", "support"]},
        {"name": "no_max", "family": "softmax", "summary": "no maximum subtracted", "killed_by": ["output", ""]},
    ],
    "correct_kernels": [
        {"name": "online", "examples": 90, "alarms": [], "worst": 0.5, "seconds": 1.0},
        {"name": "split", "examples": 90, "alarms": ["seed 0: output: too far"], "worst": "inf", "seconds": 1.0},
    ],
}  # fmt: skip


def test_the_kill_matrix_names_the_survivors(drawn):
    text = flat(drawn(*kill_matrix_text(KILL_MATRIX)))
    for part in (
        "masks: 1 of 1 seen causal_off_by_one j <= i + 1 support",
        "softmax: 0 of 1 seen no_max no maximum subtracted output, NOT SEEN",
        "seen first by: support 2, output 1", "online 90 0 0.5 1.0", "split: seed 0: output: too far",
        "UNSOUND 1 of 2 mutants seen under every seed; 1 of 2 correct implementations never alarmed (exit code 1, 12 s)",
    ):  # fmt: skip
        assert part in text, part
