"""An error code, a rule of the attention contract or a check, in a few lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from ..attention.rules import Rule
from ..errors.codes import Code

WIDTH = 79

Data = dict[str, Any]


def code_text(code: str, entry: Code) -> str:
    """Title, rule, an example that breaks it, and the fix."""
    wrong = textwrap.indent(entry.wrong, "    ")
    return f"{code}  {entry.title}\n\n{_filled(entry.rule)}\n\nWrong:\n{wrong}\n\n{_filled(entry.fix)}\n"


def rule_text(number: str, rule: Rule, checks: Iterable[Data]) -> str:
    """The rule, and its checks."""
    return "\n".join([f"{number}  {rule.title}\n\n{_filled(rule.text)}\n\nChecked by:", *map(_line, checks)]) + "\n"


def check_text(check: Data) -> str:
    """What the check evaluates, its demand, and the features that void it."""
    lines = [f"{check['name']}  ({check['evaluates']})", "", _filled(check["summary"])]
    if check["demand"]:
        lines.append(_filled(f"Demanded {check['demand']}."))
    if check["void"]:
        lines.append(_filled(f"Void where: {', '.join(check['void'])}."))
    if check["rule"].startswith("A"):
        lines.append(f"It shows rule {check['rule']}: `tfkit explain {check['rule']}`.")
    return "\n".join(lines) + "\n"


def checks_text(checks: Iterable[Data]) -> str:
    """One line per check, grouped by what they evaluate."""
    lines: list[str] = []
    heading = ""
    for check in checks:
        if check["evaluates"] != heading:
            heading = check["evaluates"]
            lines += ["", f"{heading}:"]
        lines.append(_line(check))
    return "\n".join(lines[1:])


def _line(check: Data) -> str:
    return f"  {check['name']:<34} {check['summary']}"


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
