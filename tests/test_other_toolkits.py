"""The page that names options of other toolkits: every option, key and filter of tfkit on it exists."""

import re
from pathlib import Path

import click
import yaml

from tfkit import Recipe, load_recipe
from tfkit.cli.dispatch import COMMANDS, commands

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guides" / "you-know-it-as.md").read_text(encoding="utf-8")
CELLS = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.splitlines() if line.startswith("| ")]
CODE = [code for cell in CELLS for code in re.findall(r"`([^`]+)`", cell)]


def test_options_of_commands_exist(catalogue):
    context = click.Context(commands)
    filters = {entry.name for entry in catalogue.entries("score_filter")}
    known = {name: {o for p in commands.get_command(context, name).params for o in p.opts} for name in COMMANDS}
    found = 0
    for code in CODE:
        words = code.split()
        command = words[1] if words[0] == "tfkit" else "train" if "--from" in words else "translate"
        for word in words:
            if word.startswith("--"):
                assert word in known[command], code
                found += 1
        if "--filter" in words:
            kind = words[words.index("--filter") + 1].partition(":")[0]
            assert kind in filters, code
    assert found > 20


def test_keys_of_recipes_exist():
    keys = [code for code in CODE if re.match(r"[a-z_]+(\.[a-z_]+)?(: |$)", code) and not code.startswith("tfkit")]
    assert len(keys) > 15
    sample = load_recipe(ROOT / "specs" / "recipes" / "sample.yaml")
    for key in keys:
        name, _, value = key.partition(": ")
        top, _, below = name.partition(".")
        assert top in Recipe.model_fields, key
        part = getattr(sample, top)
        options = getattr(part, "options", part)
        if below:
            assert below in (type(options).model_fields if options is not None else {"freeze"}), key
        if value.startswith("{"):
            fields = yaml.safe_load(value)
            assert fields["kind"] in ("inverse_sqrt", "noam"), key
