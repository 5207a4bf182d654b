"""`tfkit explain`: what an error code means."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ..codes import CODES
from .arguments import Parser, add_common, usage_fault
from .output import print_json, print_text

EPILOG = """\
--json prints an object, or without a code a list of them: `code`, `title`,
`rule`, `wrong` (an example that breaks it), `fix`."""


def arguments(parser: Parser) -> None:
    parser.add_argument("code", metavar="TFK###", nargs="?", help="a code; all of them if none is given")
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    if options.code is None:
        if options.json:
            print_json([{"code": code, **asdict(entry)} for code, entry in CODES.items()])
        else:
            print_text("\n".join(f"{code}  {entry.title}" for code, entry in CODES.items()))
        return 0
    code = options.code.upper()
    if code not in CODES:
        raise usage_fault(f"there is no code `{options.code}`", "`tfkit explain` lists all codes")
    entry = CODES[code]
    if options.json:
        print_json({"code": code, **asdict(entry)})
    else:
        from ..view.code_text import code_text

        print_text(code_text(code, entry))
    return 0
