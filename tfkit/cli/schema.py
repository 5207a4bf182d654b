"""`tfkit schema`: the JSON Schema of a spec, from the plugins that are installed, or of a recipe."""

from __future__ import annotations

import argparse
import json

from .arguments import Parser, add_common, nearest, place
from .output import print_text, write_whole

LANGUAGES = ("spec", "recipe")
EPILOG = """\
An editor with a YAML language server completes and checks a file whose first
line is `# yaml-language-server: $schema=schema.json`: for specs the output of
`tfkit schema`, for recipes of training that of `tfkit schema recipe`.
The output is JSON with or without --json, which matters for faults only."""


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "language", metavar="spec|recipe", nargs="?", type=_language, default="spec", help="of what (default spec)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=place, help="write it to a file instead")
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    text = json.dumps(_schema(options.language), indent=2) + "\n"
    if options.output is None:
        print_text(text)
    else:
        write_whole(options.output, text)
    return 0


def _schema(language: str) -> object:
    if language == "recipe":
        from ..recipe import recipe_schema

        return recipe_schema()
    from ..catalogue import load_catalogue
    from ..spec import json_schema

    return json_schema(load_catalogue())


def _language(text: str) -> str:
    if text not in LANGUAGES:
        fix = nearest(text, LANGUAGES) or f"known: {', '.join(LANGUAGES)}"
        raise argparse.ArgumentTypeError(f"there is no schema of `{text}`; {fix}")
    return text
