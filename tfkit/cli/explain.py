"""`tfkit explain`: what an error code, a rule of the attention contract or a check of a report means."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ..attention.rules import RULES
from ..errors.codes import CODES
from .check_texts import all_checks, checks_named
from .options import common
from .output import print_json, print_text
from .usage import nearest, usage_error

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
        from ..view.code_text import code_text

        code = words.upper()
        print_json(_code(code)) if as_json else print_text(code_text(code, CODES[code]))
        return 0
    return _about_checks(words, as_json)


def _about_checks(words: str, as_json: bool) -> int:
    if words[:3].upper() == "TFK":
        padded = f"TFK{words[3:]:0>3}"
        near = f"did you mean `{padded}`?" if padded in CODES else nearest(words.upper(), CODES)
        raise usage_error(f"there is no code `{words}`", near or "`tfkit explain` lists all codes")
    from ..view.code_text import check_text, checks_text, rule_text

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
