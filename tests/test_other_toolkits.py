"""The page that names options of other toolkits: every option, key and filter of tfkit on it exists."""

import re
from pathlib import Path

import click
import pytest
import yaml

from tfkit import Recipe, load_recipe, load_spec
from tfkit.cli.dispatch import COMMANDS, commands
from tfkit.recipe.parts import OPTIMISERS, SCHEDULES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guides" / "migrating.md"


def code_by_heading():
    """The code in the column of tfkit of every table, by the heading of its section."""
    found, heading, column = {}, "", None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            column = None
        elif column is None:
            [column] = [at for at, cell in enumerate(cells) if cell.startswith("tfkit")]
        else:
            found.setdefault(heading, []).extend(re.findall(r"`([^`]+)`", cells[column]))
    return found


CODE = code_by_heading()
ALL = [code for part in CODE.values() for code in part]


def test_options_of_commands_exist(catalogue):
    context = click.Context(commands)
    filters = {entry.name for entry in catalogue.entries("score_filter")}
    known = {name: {o for p in commands.get_command(context, name).params for o in p.opts} for name in COMMANDS}
    assert {"Commands", "Translating"} <= set(CODE)
    found = 0
    for code in ALL:
        words = code.split()
        training = {"--from", "--processes", "--fsdp"} & set(words)
        command = words[1] if words[0] == "tfkit" else "train" if training else "translate"
        for word in words:
            if word.startswith("--"):
                assert word in known[command], code
                found += 1
        if "--filter" in words:
            kind = words[words.index("--filter") + 1].partition(":")[0]
            assert kind in filters, code
    assert found > 30


@pytest.mark.parametrize("heading", ["Training", "Training with Marian"])
def test_keys_of_recipes_exist(heading):
    keys = [code for code in CODE[heading] if re.match(r"[a-z_]+(\.[a-z_]+)?(: |$)", code)]
    assert len(keys) > 15
    sample = load_recipe(ROOT / "specs" / "recipes" / "sample.yaml")
    kinds = {"optimiser": OPTIMISERS, "schedule": SCHEDULES}
    for key in keys:
        name, _, value = key.partition(": ")
        top, _, below = name.partition(".")
        if key == "bfloat16":  # a value of the key before it
            continue
        assert top in Recipe.model_fields, key
        part = getattr(sample, top)
        options = getattr(part, "options", part)
        if below:
            assert below in (type(options).model_fields if options is not None else {"freeze"}), key
        if value.startswith("{"):
            fields = yaml.safe_load(value)
            kind = fields.pop("kind")
            [entry] = [entry for entry in kinds[top] if entry.name == kind]
            assert set(fields) <= set(entry.options.model_fields), key


VALUES = {
    "defaults.d_model": 256, "encoder.num_layers": 2, "defaults.attention.num_heads": 4, "defaults.ffn.d_ff": 64,
    "defaults.dropout": 0.3, "defaults.attention.dropout": 0.3, "defaults.placement": "pre", "defaults.position": "learned",
}  # fmt: skip


def test_keys_of_specs_exist():
    keys = {code.partition(": ")[0] for code in CODE["The model"] if "." in code}
    assert keys == set(VALUES)
    for key, value in VALUES.items():
        load_spec("transformer-base", overrides=["expect=null", f"{key}={value}"])
