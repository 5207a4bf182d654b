"""The JSON Schema of recipes: it accepts what loads and refuses what the reader refuses."""

import json
from pathlib import Path

import jsonschema
import pytest

from tfkit import Recipe, SpecError, load_recipe
from tfkit.recipe import recipe_of, recipe_schema, recipe_text
from tfkit.recipe.parts import PARTS
from tfkit.spec.located import Diagnostics, plain
from tfkit.spec.reader import read_text

RECIPES = Path(__file__).parents[2] / "specs" / "recipes"
SHIPPED = sorted(RECIPES.glob("*.yaml"))
BASE = "tfkit: 1\nname: x\nmodel: m.yaml\nstopping: {max_steps: 5}\n"


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(json.loads(json.dumps(recipe_schema())))


def schema_errors(validator, text):
    return [error.message for error in validator.iter_errors(plain(read_text(text, "r.yaml", Diagnostics())))]


def test_it_is_a_schema_without_loose_ends():
    schema = recipe_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(schema)
    assert "x-slot" not in text
    for name in schema["$defs"]:
        assert f'"#/$defs/{name}"' in text


def test_the_shipped_schema_is_up_to_date():
    written = json.loads((RECIPES / "schema.json").read_text())
    assert written == recipe_schema(), "run `tfkit schema recipe -o specs/recipes/schema.json`"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_points_to_it_and_is_valid_filled_in_too(path, validator):
    text = path.read_text()
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    assert schema_errors(validator, text) == []
    assert schema_errors(validator, json.dumps(load_recipe(path).written())) == []


def leaves(schema, definitions):
    """Every property of a schema by its path, those of definitions and of the kinds of a part included."""
    if "$ref" in schema:
        yield from leaves(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    for name, inner in schema.get("properties", {}).items():
        yield name, inner
        yield from leaves(inner, definitions)
    for inner in [*schema.get("allOf", ()), *(schema[key] for key in ("then", "else") if key in schema)]:
        yield from leaves(inner, definitions)


def described(schema, definitions):
    own = definitions[schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else {}
    return "description" in schema or "description" in own or any("description" in each for each in schema.get("anyOf", ()))


def test_every_key_is_described_and_has_its_default():
    schema = recipe_schema()
    found = list(leaves(schema["else"], schema["$defs"]))
    assert {name for name, _ in found} >= {*Recipe.model_fields, "extends", "vocab_size", "beta2", "floor", "held_out", "beams"}
    assert [name for name, each in found if name != "kind" and not described(each, schema["$defs"])] == []
    known = dict(found)
    assert known["beta2"]["default"] == 0.98
    assert known["precision"]["default"] == "float32"
    assert known["optimiser"]["default"] == "adam"
    assert known["batching"]["default"]["tokens"] == 4096


RIGHT = [
    *(f"{slot}: {{kind: {entry.name}}}" for slot in ("data", "tokeniser", "optimiser") for entry in PARTS[slot]),
    *(f"{slot}: {entry.name}" for slot in ("data", "tokeniser", "optimiser") for entry in PARTS[slot]),
    "schedule: noam",
    "schedule: {kind: cosine, peak: 1.0e-3, steps: 10}",
    "schedule: {kind: constant, peak: 1}",
    "data: {kind: classification, table: t.tsv, header: true, text_column: 2, label_column: 1, held_out: 3}",
    "data: {kind: masked, text: t.txt, hidden: 0.5}",
    "data: {kind: parallel, source: a, target: b, validation_source: c, validation_target: d}",
    "pretrained: runs/en-de",
    "clip_norm: null\naverage: 0.5\nprecision: bfloat16\nseed: 4294967295",
    "batching: {}\nloss: {smoothing: others, label_smoothing: 0}\nvalidation: {metric: chrf, beams: 5, lowercase: true}",
    "changes: [encoder.num_layers=2]\nreference: https://example.org\ndescription: a few words",
    "tokeniser: {kind: unigram, vocab_size: null, normalise: nfc, lowercase: true, byte_fallback: false}",
]


@pytest.mark.parametrize("body", RIGHT)
def test_the_schema_accepts_valid_recipes(body, validator):
    recipe_of(BASE + body + "\n", "r.yaml")
    assert schema_errors(validator, BASE + body) == []


@pytest.mark.parametrize("rows", [1, 30_000, 10**7])
def test_the_schema_accepts_settings_for_a_corpus(rows, validator):
    assert schema_errors(validator, recipe_text("a", "m.yaml", "parallel", rows)) == []


NONSENSE = [
    ("tfkit: 1", "tfkit: 2"),
    ("tfkit: 1\n", ""),
    ("name: x\n", ""),
    ("name: x", "name: ''"),
    ("name: x", "name: 3"),
    ("model: m.yaml\n", ""),
    ("model: m.yaml", "modle: m.yaml"),
    ("model: m.yaml", "model: {kind: stack}"),
    ("model: m.yaml", "model: m.yaml\nnodes: {a: {kind: tokens}}"),
    ("model: m.yaml", "model: m.yaml\nchanges: encoder.num_layers=2"),
    ("model: m.yaml", "model: m.yaml\nchanges: [3]"),
    ("stopping: {max_steps: 5}\n", ""),
    ("{max_steps: 5}", "{}"),
    ("{max_steps: 5}", "{max_steps: null}"),
    ("{max_steps: 5}", "{max_steps: 0}"),
    ("{max_steps: 5}", "{max_steps: 2.5}"),
    ("{max_steps: 5}", "{max_steps: 2000000000000}"),
    ("{max_steps: 5}", "{max_steps: true}"),
    ("{max_steps: 5}", "{max_minutes: 0}"),
    ("{max_steps: 5}", "{steps: 5}"),
    ("{max_steps: 5}", "5"),
    *(
        ("stopping", f"{line}\nstopping")
        for line in (
            "bathing: {tokens: 1}",
            "batching: {token: 1}",
            "batching: {tokens: 0}",
            "batching: {tokens: many}",
            "batching: {label_smoothing: 0.1}",
            "batching: {max_length: 1}",
            "batching: {max_ratio: 0.5}",
            "batching: null",
            "loss: {label_smoothing: 1.0}",
            "loss: {label_smoothing: -0.1}",
            "loss: {smoothing: both}",
            "loss: label_smoothing",
            "pretrained: ''",
            "pretrained: [a, b]",
            "precision: fp16",
            "precision: null",
            "average: 1",
            "average: 0.0",
            "average: often",
            "clip_norm: 0",
            "seed: -1",
            "seed: 4294967296",
            "seed: null",
            "activation_checkpointing: 1",
            "validation: {metric: blue}",
            "validation: {beams: 0}",
            "validation: {beams: 101}",
            "validation: {lowercase: 'yes'}",
            "keeping: {last: 0}",
            "keeping: {best: 1.5}",
            "data: paralel",
            "data: 3",
            "data: [parallel]",
            "data: null",
            "data: {source: a.txt, target: b.txt}",
            "data: {kind: parallel, text: a.txt}",
            "data: {kind: language, hidden: 0.1}",
            "data: {kind: masked, hidden: 1.0}",
            "data: {kind: parallel, source: ''}",
            "data: {kind: parallel, held_out: 0}",
            "data: {kind: classification, text_column: 0}",
            "data: {kind: classification, header: no way}",
            "tokeniser: wordpiece",
            "tokeniser: {kind: bpe, vocab_size: 3}",
            "tokeniser: {kind: bpe, vocab_size: 1000001}",
            "tokeniser: {kind: characters, vocab_size: 100}",
            "tokeniser: {kind: bpe, normalise: nfd}",
            "optimiser: lion",
            "optimiser: {kind: adam, weight_decay: 0.1}",
            "optimiser: {kind: adamw, weight_decay: -0.1}",
            "optimiser: {kind: adam, beta1: 1.0}",
            "optimiser: {kind: adam, eps: 0}",
            "optimiser: {eps: 1.0e-8}",
            "schedule: cosin",
            "schedule: inverse_sqrt",
            "schedule: {kind: constant}",
            "schedule: {kind: cosine, peak: 1.0e-3}",
            "schedule: {kind: noam, warmup: 5}",
            "schedule: {kind: noam, warmup_steps: 0}",
            "schedule: {kind: constant, peak: -1}",
            "schedule: {kind: constant, peak: 1, floor: 0}",
        )
    ),
]


@pytest.mark.parametrize(("old", "new"), NONSENSE, ids=[f"{number} {new}" for number, (_, new) in enumerate(NONSENSE)])
def test_nonsense_is_refused_by_the_reader_and_by_the_schema(old, new, validator):
    assert old in BASE
    text = BASE.replace(old, new, 1)
    with pytest.raises(SpecError):
        recipe_of(text, "r.yaml")
    assert schema_errors(validator, text) != []


EXTENDING = "tfkit: 1\nname: y\nextends: base.yaml\n"


@pytest.mark.parametrize(
    "body",
    ["", "batching: {tokens: 50}\nclip_norm: null", "schedule: {warmup_steps: 5}", "stopping: {max_steps: null}", "seed: 3"],
)
def test_a_recipe_that_extends_another_may_leave_out_and_remove(body, validator, tmp_path):
    base = "batching: {tokens: 100}\nclip_norm: 1.0\nschedule: {kind: constant, peak: 1}\n"
    (tmp_path / "base.yaml").write_text(BASE.replace("{max_steps: 5}", "{max_steps: 5, patience: 2}") + base)
    (tmp_path / "near.yaml").write_text(EXTENDING + body + "\n")
    load_recipe(tmp_path / "near.yaml")
    assert schema_errors(validator, EXTENDING + body) == []


@pytest.mark.parametrize(
    "body",
    [
        "batching: {token: 50}",
        "schedule: {kind: cosin}",
        "schedule: {warmup: 3}",
        "seed: no",
        "data: {kind: masked, source: a}",
    ],
)
def test_nonsense_in_a_recipe_that_extends_another_is_refused(body, validator, tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "near.yaml").write_text(EXTENDING + body + "\n")
    with pytest.raises(SpecError):
        load_recipe(tmp_path / "near.yaml")
    assert schema_errors(validator, EXTENDING + body) != []
