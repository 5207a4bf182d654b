"""specs/schema.json, which editors read, is the schema of the built-in parts, and every shipped spec is valid under it."""

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import jsonschema
import pytest
import yaml

from tfkit import load_catalogue
from tfkit.spec import json_schema

SPECS = Path(__file__).parent.parent / "specs"
FILES = sorted(SPECS.glob("*.yaml"))


@pytest.fixture(scope="module")
def schema():
    return json.loads((SPECS / "schema.json").read_text())


def test_it_is_up_to_date(schema):
    builtin = load_catalogue([EntryPoint("builtin", "tfkit.builtin", "tfkit")])
    assert schema == json_schema(builtin), "run `tfkit schema -o specs/schema.json` with only tfkit installed"


@pytest.mark.parametrize("file", ["schema.json", "recipes/schema.json"])
def test_limits_of_arrays_are_numbers_of_items(file):
    def lists(node):
        if isinstance(node, dict):
            if node.get("type") == "array":
                yield node
            node = list(node.values())
        for member in node if isinstance(node, list) else ():
            yield from lists(member)

    found = list(lists(json.loads((SPECS / file).read_text())))
    assert any("minItems" in each for each in found)
    assert not [each for each in found if each.keys() & {"minLength", "maxLength"}]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_spec_points_to_it_and_is_valid(path, schema):
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("written", "typo"),
    [
        ("num_heads", "num_head"),
        ("vocab_size", "vocab"),
        ("kind: stack", "kind: stak"),
        ("activation: relu", "activation: reluu"),
    ],
)
def test_a_typo_is_refused(written, typo, schema):
    text = (SPECS / "transformer-base.yaml").read_text()
    assert written in text
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(text.replace(written, typo, 1)))
