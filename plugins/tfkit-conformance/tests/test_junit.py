"""The JUnit document, read as its readers read it."""

from xml.etree import ElementTree

import reported
from tfkit_conformance.finding import Finding
from tfkit_conformance.process.messages import junit
from tfkit_conformance.report import CheckResult


def suite_of(data):
    root = ElementTree.fromstring(junit(data))
    assert root.tag == "testsuites"
    [suite] = root
    cases = suite.findall("testcase")
    assert int(suite.get("tests")) == len(cases) == int(root.get("tests"))
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
    assert int(suite.get("skipped")) == len(suite.findall("testcase/skipped"))
    assert suite.get("errors") == "0"
    return suite


def test_one_case_per_check_and_one_for_the_ledger():
    suite = suite_of(reported.right())
    assert [case.get("name") for case in suite.findall("testcase")] == ["contract", "output", "ledger"]
    assert {case.get("classname") for case in suite.findall("testcase")} == {"tfkit.backend.acme.flash"}
    assert suite.find("testcase").get("time") == "0.250"
    properties = {each.get("name"): each.get("value") for each in suite.find("properties")}
    expected = {"seed": "7", "version.torch": "2.13.0", "grade.float32": "A (1.00)", "verdict": "CONFORMANT", "device": "cpu"}
    assert expected.items() <= properties.items()


def test_a_failure_has_its_words_and_python():
    [failure] = suite_of(reported.wrong()).findall("testcase/failure")
    assert failure.get("message") == "query row 3 of batch row 1 sees key 17; it must not"
    for words in ("got 0.5, the reference 0.25", "looks like: causal limit off by one", "from tfkit_conformance import Case"):
        assert words in failure.text


def test_different_numbers_are_written_with_enough_digits():
    near = Finding("support", "A4", "wrong", "output", (2,), 0.25, 0.25000000001, 0.0)
    [failure] = suite_of(reported.report(reported.FAILED, findings=(near,))).findall("testcase/failure")
    assert "output[2]: got 0.25, the reference 0.25000000001, allowed error 0\n" in failure.text


def test_a_missing_cell_fails_the_ledger():
    [case] = [case for case in suite_of(reported.incomplete()).findall("testcase") if case.find("failure") is not None]
    assert case.get("name") == "ledger"
    assert "mask pair: causal + window (float32 0, bfloat16 3)" in case.find("failure").text


def test_a_check_that_was_not_run_is_skipped():
    messages = [each.get("message") for each in suite_of(reported.absent()).findall("testcase/skipped")]
    assert messages == ["not run: there is no device cuda:3 here"] * 3 + ["nothing was exercised"]


def test_an_inconclusive_check_is_a_failure():
    [failure] = suite_of(reported.report(CheckResult("output", "", "", "inconclusive", 3))).findall("testcase/failure")
    assert failure.get("message") == "inconclusive"


def test_characters_that_xml_cannot_hold_are_escaped():
    odd = Finding("support", "A4", "raised \x00\x1b[2J \ud800 <&> \U0001f600")
    [failure] = suite_of(reported.report(reported.FAILED, findings=(odd,))).findall("testcase/failure")
    assert failure.get("message") == "raised \\x00\\x1b[2J \\ud800 <&> \U0001f600"
