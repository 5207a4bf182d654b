"""A report as outcomes for test runners, check by check.

failed     a rule is broken, or a declared cell was not exercised, or nothing could be evaluated
skipped    does not apply to this part, or its device is not there
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

Data = Mapping[str, Any]
Outcome = Literal["passed", "failed", "skipped"]

LEDGER = "ledger"
"""The row beside the checks: every declared cell was exercised."""

OUTCOMES: dict[str, Outcome] = {
    "passed": "passed", "failed": "failed", "inconclusive": "failed", "not applicable": "skipped", "not run": "skipped",
}  # fmt: skip


@dataclass(frozen=True)
class CheckOutcome:
    """One check for a test runner; `words` say why it did not pass."""

    name: str
    outcome: Outcome
    words: str = ""
    seconds: float = 0.0


def outcomes(report: Data) -> list[CheckOutcome]:
    """Every check of a report, as data, and its ledger."""
    rows = [_check(check, report["findings"]) for check in report["checks"]]
    return [*rows, _ledger(report)]


def _check(check: Data, findings: Iterable[Data]) -> CheckOutcome:
    outcome = OUTCOMES[check["status"]]
    words = "\n\n".join(finding_in_words(finding) for finding in findings if finding["check"] == check["name"])
    status_text = ": ".join(part for part in (check["status"], check["note"].removeprefix(f"{check['status']}: ")) if part)
    return CheckOutcome(check["name"], outcome, "" if outcome == "passed" else words or status_text, check["seconds"])


def _ledger(report: Data) -> CheckOutcome:
    missing = [row for row in report["ledger"] if row["missing"]]
    if missing:
        return CheckOutcome(
            LEDGER, "failed", "\n".join(["declared, but not exercised:", *(f"  {cell_in_words(row)}" for row in missing)])
        )
    if not report["ledger"]:
        return CheckOutcome(LEDGER, "skipped", "nothing was exercised")
    return CheckOutcome(LEDGER, "passed")


def cell_in_words(row: Data) -> str:
    """`mask pair: causal + window (float32 0, bfloat16 2)`."""
    counts = ", ".join(f"{dtype} {number}" for dtype, number in row["counts"].items())
    return f"{row['group']}: {row['cell']} ({counts})"


def finding_in_words(finding: Data) -> str:
    """The words, the numbers, what it looks like, and Python that shows it."""
    lines = [finding["message"]]
    numbers = numbers_in_words(finding)
    if numbers:
        lines.append(numbers)
    if finding["failed"]:
        lines.append(f"{finding['failed']} of {finding['examples']} examples failed")
    lines += finding.get("call", "").splitlines()
    if finding["looks_like"]:
        lines.append(f"looks like: {finding['looks_like']}")
    return "\n".join(lines) + (f"\n\n{finding['snippet'].rstrip()}" if finding["snippet"] else "")


def numbers_in_words(finding: Data) -> str:
    """`output[0, 1, 2]: got 0.5, the reference 0.25, allowed 1e-06`, as far as they are known."""
    index = f"[{', '.join(map(str, finding['index']))}]" if finding["index"] else ""
    place = f"{finding['tensor'] or 'element'}{index}: " if finding["tensor"] or index else ""
    got, want = format_distinct(finding["got"], finding["want"])
    known = (("got", got), ("the reference", want), ("allowed error", format_number(finding["bound"])))
    numbers = [f"{name} {value}" for name, value in known if value]
    return place + ", ".join(numbers) if numbers else ""


def format_distinct(got: Any, want: Any) -> tuple[str, str]:
    """Two numbers in as many digits as it takes to see that they differ, six at least."""
    for digits in (6, 9, 17):
        pair = format_number(got, digits), format_number(want, digits)
        if pair[0] != pair[1]:
            break
    return pair


def format_number(value: Any, digits: int = 6) -> str:
    """A number with so many digits, "" for None. NaN and infinity are texts already."""
    if value is None:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, (int, float)) else str(value)


TAGS = {"failed": "failure", "skipped": "skipped"}
ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped (https://www.w3.org/TR/xml/#charsets); a part's message may have it."""


def junit(report: Mapping[str, Any]) -> str:
    """The document of a report as data."""
    rows = outcomes(report)
    counts = {
        "tests": len(rows),
        "failures": sum(row.outcome == "failed" for row in rows),
        "errors": 0,
        "skipped": sum(row.outcome == "skipped" for row in rows),
    }
    numbers = {**{name: str(number) for name, number in counts.items()}, "time": f"{report['seconds']:.3f}"}
    root = ElementTree.Element("testsuites", {"name": "tfkit conformance", **numbers})
    name = f"tfkit.{report['slot']}.{report['name']}"
    suite = ElementTree.SubElement(root, "testsuite", {"name": _legal(name), **numbers})
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _properties(report).items():
        ElementTree.SubElement(properties, "property", {"name": _legal(key), "value": _legal(value)})
    for row in rows:
        _testcase(suite, name, row)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _testcase(suite: ElementTree.Element, name: str, row: CheckOutcome) -> None:
    attributes = {"classname": _legal(name), "name": _legal(row.name), "time": f"{row.seconds:.3f}"}
    case = ElementTree.SubElement(suite, "testcase", attributes)
    if row.outcome == "passed":
        return
    words = _legal(row.words)
    first = words.partition("\n")[0]
    more = {"type": "Violation"} if row.outcome == "failed" else {}
    element = ElementTree.SubElement(case, TAGS[row.outcome], {"message": first, **more})
    if row.outcome == "failed":
        element.text = words


def _properties(report: Mapping[str, Any]) -> dict[str, str]:
    keys = ("verdict", "distribution", "device", "profile", "seed", "suite")
    properties = {key: str(report[key]) for key in keys} | {"dtypes": ", ".join(report["dtypes"])}
    properties |= {f"version.{name}": value for name, value in report["versions"].items()}
    return properties | {f"grade.{dtype}": grade for dtype, grade in report["grades"].items()}


def _legal(text: str) -> str:
    return ILLEGAL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
