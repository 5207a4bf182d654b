"""Every code that the package can raise is explained, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import tfkit
from tfkit.errors.codes import CODES


def used() -> set[str]:
    files = Path(tfkit.__file__).parent.rglob("*.py")
    return {code for path in files for code in re.findall(r"\bTFK\d{3}\b", path.read_text(encoding="utf-8"))}


def test_every_code_in_use_is_explained() -> None:
    assert used() - CODES.keys() == set()


def test_codes_are_whole_and_sorted() -> None:
    assert list(CODES) == sorted(CODES)
    for name, code in CODES.items():
        assert re.fullmatch(r"TFK[01]\d\d", name)
        assert all((code.title, code.rule, code.wrong, code.fix))
        assert code.rule.endswith(".")
        assert code.fix.endswith((".", "`"))
