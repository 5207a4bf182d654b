"""`tfkit explain`: what an error code, a rule of the attention contract or a check of a report means."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import Any

import click

from ..attention.rules import RULES, Rule
from ..errors.codes import CODES, Code
from .options import common
from .output import print_json, print_text
from .usage import nearest, usage_error

WIDTH = 79
Data = dict[str, Any]
EPILOG = """\b
tfkit explain TFK012     an error code
tfkit explain A5         a rule of the attention contract, what checks it
tfkit explain R19        a check of `tfkit conformance` or `tfkit verify`
tfkit explain checks     all checks
tfkit explain            all codes and rules

\b
--json prints an object, or a list of objects if there are several: `code`,
`title`, `rule`, `wrong` (an example that breaks it), `fix` for a code;
`rule`, `title`, `text`, `checks` for a rule; `name`, `evaluates`, `rule`,
`summary`, `demand`, `void` for a check.
"""


@click.command("explain", epilog=EPILOG)
@click.argument("what", nargs=-1, metavar="[WHAT]", help="A code, a rule or a check.")
@common
def command(what: tuple[str, ...], as_json: bool) -> int:
    """Explain an error code, a rule of the attention contract or a check."""
    words = " ".join(what)
    if not what:
        if as_json:
            print_json([_code(code) for code in CODES] + [_rule(number) for number in RULES])
        else:
            lines = [f"{code}  {entry.title}" for code, entry in CODES.items()]
            lines += [f"{number:6}  {rule.title}" for number, rule in RULES.items()]
            print_text("\n".join(lines))
        return 0
    if words.upper() in CODES:
        code = words.upper()
        print_json(_code(code)) if as_json else print_text(code_text(code, CODES[code]))
        return 0
    return _about_checks(words, as_json)


def _about_checks(words: str, as_json: bool) -> int:
    if words[:3].upper() == "TFK":
        padded = f"TFK{words[3:]:0>3}"
        near = f"did you mean `{padded}`?" if padded in CODES else nearest(words.upper(), CODES)
        raise usage_error(f"there is no code `{words}`", near or "`tfkit explain` lists all codes")

    listed = words.casefold() == "checks"
    checks = all_checks() if listed else checks_named(words)
    data = [asdict(check) for check in checks]
    number = words.upper()
    if number in RULES:
        if as_json:
            print_json({**_rule(number), "checks": data})
        else:
            print_text(rule_text(number, RULES[number], data))
    elif not checks:
        known = [name for check in all_checks() for name in (check.name, check.name.partition(" ")[2]) if name]
        lists = "`tfkit explain` lists all codes and rules, `tfkit explain checks` all checks"
        raise usage_error(f"there is no code, rule or check `{words}`", nearest(words, known) or lists)
    elif as_json:
        print_json(data)
    else:
        print_text(checks_text(data) if listed else "\n".join(map(check_text, data)))
    return 0


def _code(code: str) -> dict[str, Any]:
    return {"code": code, **asdict(CODES[code])}


def _rule(number: str) -> dict[str, Any]:
    return {"rule": number, **asdict(RULES[number])}


@dataclass(frozen=True)
class Check:
    """One check: its name in reports, the kind of part that it evaluates, the rule of the contract (or the number of the
    relation), one line about it, the condition that must hold, and the features without which there is nothing to evaluate."""

    name: str
    evaluates: str
    rule: str
    summary: str
    demand: str = ""
    void: tuple[str, ...] = ()


def all_checks() -> list[Check]:
    """The checks of all installed distributions. tfkit-conformance lists them slot by slot, then those of `tfkit verify`.

    A distribution that ships checks names a JSON file with their texts in the entry-point group `tfkit.checks`, so that
    neither the checks nor torch are imported.
    """
    files = [point.load() for point in entry_points(group="tfkit.checks")]
    read = [check for file in files for check in json.loads(file.read_text(encoding="utf-8"))]
    return [Check(**{**check, "void": tuple(check["void"])}) for check in read]


def checks_named(words: str) -> list[Check]:
    """The checks with this name, number (`R19`) or rule (`A5`), in any case."""
    wanted = words.casefold()
    return [check for check in all_checks() if wanted in _names(check)]


def _names(check: Check) -> set[str]:
    """The names by which `tfkit explain` finds a check."""
    first, _, rest = check.name.partition(" ")
    numbered = {first, rest} if first[:1] in "AR" and first[1:].isdigit() else set()
    return {word.casefold() for word in {check.name, check.rule, *numbered} if word}


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
