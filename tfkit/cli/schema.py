"""`tfkit schema`: the JSON Schema of a spec, from the installed plugins, or of a recipe."""

from __future__ import annotations

import json

import click

from .options import WRITE, OneOf, common
from .output import print_text, write_whole

EPILOG = """\b
An editor with a YAML language server completes and checks a file whose first
line is `# yaml-language-server: $schema=schema.json`: for specs the output of
`tfkit schema`, for recipes of training that of `tfkit schema recipe`.
The output is JSON with or without --json; --json makes errors JSON too.
"""


@click.command("schema", epilog=EPILOG)
@click.argument("language", type=OneOf("language", ("spec", "recipe")), default="spec", metavar="[spec|recipe]")
@click.option("-o", "--output", metavar="FILE", type=WRITE, help="Write to this file instead of standard output.")
@common
def command(language: str, output: str | None, as_json: bool) -> int:
    """Print the JSON Schema of a spec or a recipe, for editors."""
    text = json.dumps(_schema(language), indent=2, allow_nan=False) + "\n"
    if output is None:
        print_text(text)
    else:
        write_whole(output, text)
    return 0


def _schema(language: str) -> object:
    if language == "recipe":
        from ..recipe import recipe_schema

        return recipe_schema()
    from ..catalogue import load_catalogue
    from ..spec import json_schema

    return json_schema(load_catalogue())
