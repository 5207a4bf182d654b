"""`tfkit specs`: the specs and recipes that come with tfkit."""

from __future__ import annotations

from typing import Any

import click

from .options import common
from .output import print_json, print_text

EPILOG = """\b
A name stands wherever a command or a file names a spec or a recipe:
tfkit show transformer-base
tfkit train sample -o runs/sample
extends: transformer-base             in a spec of yours
tfkit new spec transformer-base -o my.yaml     a copy to edit

\b
--json prints an object with `specs` (`name`, `parameters`, `description`,
`reference`, `file`) and `recipes` (`name`, `model`, `description`, `file`).
"""


@click.command("specs", epilog=EPILOG)
@common
def command(as_json: bool) -> int:
    """List the specs and recipes that come with tfkit."""
    specs = [_described("spec", name) for name in _names("spec")]
    recipes = [_described("recipe", name) for name in _names("recipe")]
    if as_json:
        print_json({"specs": specs, "recipes": recipes})
        return 0
    lines = [f"{spec['name']:27}  {spec['parameters']:13,}  {spec['description']}" for spec in specs]
    lines += ["", "recipes, each with its model"]
    lines += [f"{recipe['name']:22}  {recipe['model']:22}  {recipe['description']}" for recipe in recipes]
    print_text("\n".join(lines))
    return 0


def _names(kind: str) -> list[str]:
    from ..spec.published import published

    return list(published(kind))


def _described(kind: str, name: str) -> dict[str, Any]:
    """The head of a shipped file. The file is trusted, and only its head is read."""
    from ..spec.located import Diagnostics
    from ..spec.published import published
    from ..spec.reader import read_file

    file = published(kind)[name]
    head = read_file(file, Diagnostics()).mapping
    data: dict[str, Any] = {"name": name}
    if kind == "spec":
        data["parameters"] = head["expect"].mapping["parameters"].value
    else:
        data["model"] = head["model"].value.rpartition("/")[2].removesuffix(".yaml")
    reference = {"reference": head["reference"].value} if kind == "spec" else {}
    return {**data, "description": head["description"].value, **reference, "file": file}
