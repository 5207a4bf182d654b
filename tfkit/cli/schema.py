"""`tfkit schema`: the JSON Schema of a spec, from the plugins that are installed."""

from __future__ import annotations

import argparse
import json

from .arguments import Parser, add_common, place
from .output import print_text, write_whole

EPILOG = """\
An editor with a YAML language server completes and checks a spec whose first
line is `# yaml-language-server: $schema=schema.json`.
The output is JSON with or without --json, which matters for faults only."""


def arguments(parser: Parser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", type=place, help="write it to a file instead")
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    from ..catalogue import load_catalogue
    from ..spec import json_schema

    text = json.dumps(json_schema(load_catalogue()), indent=2) + "\n"
    if options.output is None:
        print_text(text)
    else:
        write_whole(options.output, text)
    return 0
