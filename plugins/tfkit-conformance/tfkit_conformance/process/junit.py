"""A report as JUnit XML, the format that CI systems read: https://github.com/testmoapp/junitxml.

One test case per check and one for the ledger; versions, seed, device and grades are properties of the suite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from .messages import CheckOutcome, outcomes

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
    found = {key: str(report[key]) for key in keys} | {"dtypes": ", ".join(report["dtypes"])}
    found |= {f"version.{name}": value for name, value in report["versions"].items()}
    return found | {f"grade.{dtype}": grade for dtype, grade in report["grades"].items()}


def _legal(text: str) -> str:
    return ILLEGAL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
