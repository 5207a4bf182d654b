"""A file named `.json` must be JSON (https://www.rfc-editor.org/rfc/rfc8259), although the YAML reader would accept more."""

from __future__ import annotations

import json
import re

from ..errors import Location
from .located import Diagnostics, short

_STRING = r'"(?:[^"\\]|\\.)*"'
_CONSTANT = re.compile(rf"{_STRING}|(-?(?:NaN|Infinity))")
_WORD = re.compile(r"[^\s,:\[\]{}\"]+")


class _NotFinite(ValueError):
    pass


def check_json(text: str, file: str, diagnostics: Diagnostics) -> None:
    """Raises SpecError, with the place and a fix, if a text is not JSON. The reader of values reports valid JSON that a spec
    does not allow: repeated keys, huge numbers, deep nesting."""
    try:
        json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        if text.strip():
            _report(text, error, file, diagnostics)
    except _NotFinite:
        constant = next(match for match in _CONSTANT.finditer(text) if match[1])
        message = f"`{constant[1]}` is not a number of JSON"
        diagnostics.fatal("TFK008", _location(text, constant.start(), file), "", message, "write an ordinary number")
    except (RecursionError, ValueError):  # too deep, or a number of thousands of digits: located by the reader of values
        return


def _refuse(name: str) -> None:
    raise _NotFinite


def _report(text: str, error: json.JSONDecodeError, file: str, diagnostics: Diagnostics) -> None:
    position = error.pos + len(text[error.pos :]) - len(text[error.pos :].lstrip())
    rest, before = text[position:], text[: error.pos].rstrip()
    message, fix = f"this is not JSON: {error.msg[:1].lower()}{error.msg[1:]}", ""
    # Newer Pythons point at a trailing comma, older ones at the bracket behind it.
    comma = position if rest.startswith(",") else len(before) - 1
    after = text[comma + 1 :].lstrip()
    if text[comma : comma + 1] == "," and after[:1] in ("}", "]"):
        position, message = comma, f"a comma before `{after[0]}` is not JSON"
        fix = "remove it, or name the file .yaml"
    elif rest.startswith(("//", "/*", "#")):
        message, fix = "a comment is not JSON", "remove it, or name the file .yaml"
    elif rest.startswith("'"):
        message, fix = "single quotes are not JSON", 'write "..."'
    elif error.msg.startswith("Expecting property name") and (word := _WORD.match(rest)):
        message, fix = f"`{short(word[0])}` is a key without quotes", f'write "{short(word[0])}"'
    elif error.msg.startswith("Expecting value") and (word := _WORD.match(rest)):
        message = f"`{short(word[0])}` is not a JSON value"
        fix = 'values are numbers, "text", true, false, null, lists and mappings'
    diagnostics.fatal("TFK002", _location(text, position, file), "", message, fix)


def _location(text: str, position: int, file: str) -> Location:
    return Location(file, text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position))
