"""A spec that is a Python mapping means the same as its file, and its errors name their path."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import tfkit
from tfkit import Catalogue, SpecError, load_spec, parse_spec
from tfkit.spec import to_json, to_yaml

SPECS = Path(__file__).parents[2] / "specs"


def mapping() -> dict[str, Any]:
    return {
        "tfkit": 1,
        "name": "small",
        "defaults": {"d_model": 8, "placement": "pre", "norm": "layer_norm", "attention": {"num_heads": 2}},
        "nodes": {
            "tokens": {"kind": "tokens", "vocab_size": 9},
            "body": {"kind": "stack", "input": "tokens", "layers": [{"repeat": 2}], "ffn": {"d_ff": 8, "activation": "relu"}},
        },
        "outputs": ["body"],
    }


def errors_of(given: Any, catalogue: Catalogue) -> list[str]:
    with pytest.raises(SpecError) as error:
        tfkit.graph_of(parse_spec(given, catalogue))
    assert all(not diagnostic.location and diagnostic.as_data()["file"] is None for diagnostic in error.value.diagnostics)
    return [str(diagnostic) for diagnostic in error.value.diagnostics]


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_resolved_spec_is_read_back_from_its_data(path: Path, catalogue: Catalogue) -> None:
    spec = load_spec(path, catalogue)
    assert parse_spec(json.loads(to_json(spec)), catalogue) == spec


def test_a_mapping_and_its_file_give_equal_specs(catalogue: Catalogue) -> None:
    spec = parse_spec(mapping(), catalogue)
    assert spec == parse_spec(json.dumps(mapping()), catalogue)
    assert parse_spec(MappingProxyType(OrderedDict(mapping())), catalogue) == spec
    assert parse_spec({**mapping(), "outputs": ("body",)}, catalogue) == spec
    assert parse_spec(to_yaml(spec), catalogue) == spec
    assert parse_spec(mapping(), catalogue, ["body.layers.0.repeat=3"]).nodes["body"].options.layers[0].repeat == 3


def test_a_model_is_built_from_a_mapping(catalogue: Catalogue, tmp_path: Path) -> None:
    given = mapping()
    model = tfkit.build(given, catalogue)
    assert given == mapping()
    assert model.parameter_count() == tfkit.build(parse_spec(given, catalogue), catalogue).parameter_count()
    assert tfkit.load(tfkit.save(model, tmp_path / "model")).spec == model.spec


def test_a_mapping_extends_a_file(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SPECS)
    spec = parse_spec({"tfkit": 1, "name": "a", "extends": "gpt2.yaml", "nodes": {"body": {"num_layers": 2}}}, catalogue)
    assert spec.nodes["body"].options.layers[0].repeat == 2
    with pytest.raises(SpecError, match=r"^TFK016 extends: `gpt3\.yaml` does not exist; did you mean `gpt2\.yaml`"):
        parse_spec({"tfkit": 1, "name": "a", "extends": "gpt3.yaml"}, catalogue)


def test_errors_name_their_path_and_no_file(catalogue: Catalogue) -> None:
    given = mapping()
    given["defaults"]["placement"] = "pre_norm"
    given["defaults"]["attention"] = {"nuw_heads": 2}
    given["nodes"]["tokens"]["vocab_size"] = "many"
    given["nodes"]["body"]["input"] = "token"
    assert sorted(errors_of(given, catalogue)) == [
        "TFK010 defaults.attention: unknown key `nuw_heads`; did you mean `num_heads`?",
        "TFK012 defaults.placement: unknown placement `pre_norm`; did you mean `pre`?",
        "TFK014 nodes.body.input: there is no node `token`; did you mean `tokens`?",
        "TFK020 nodes.tokens.vocab_size: a whole number is expected, `many` is written",
    ]
    given = mapping()
    given["nodes"]["more"] = {**given["nodes"]["body"], "ffn": {"activation": "relu"}}
    given["nodes"]["body"]["ffn"] = {"activation": "relu"}
    missing = "`d_ff` is missing; write it under `ffn`, here or in `defaults`"
    assert errors_of(given, catalogue) == [f"TFK030 nodes.{name}.ffn: {missing}" for name in ("body", "more")]


def test_rules_of_the_graph_name_the_path_too(catalogue: Catalogue) -> None:
    given = mapping()
    given["defaults"]["attention"]["num_heads"] = 3
    [diagnostic] = errors_of(given, catalogue)
    assert diagnostic.startswith("TFK040 defaults.attention.num_heads: d_model 8 is not divisible by num_heads 3")


A_VALUE = "text, a number, true, false, null, a list or a mapping is expected, "


@pytest.mark.parametrize(
    ("value", "diagnostic"),
    [
        (float("nan"), "TFK008 nodes.tokens.vocab_size: the number is not finite, `nan` is written"),
        (float("-inf"), "TFK008 nodes.tokens.vocab_size: the number is not finite, `-inf` is written"),
        (2**63, f"TFK008 nodes.tokens.vocab_size: the number is too large, `{2**63}` is written"),
        (-1e39, "TFK008 nodes.tokens.vocab_size: the number is too large, `-1e+39` is written"),
        ({9}, "TFK020 nodes.tokens.vocab_size: " + A_VALUE + "a set is given"),
        (b"9", "TFK020 nodes.tokens.vocab_size: " + A_VALUE + "a bytes is given"),
        (True, "TFK020 nodes.tokens.vocab_size: a whole number is expected, `true` is written"),
        ({3: 4}, "TFK006 nodes.tokens.vocab_size: a key is a plain name, not 3"),
        ("9\0", "TFK003 nodes.tokens.vocab_size: the character U+0000 is not allowed in a spec"),
    ],
)  # fmt: skip
def test_values_that_no_spec_can_hold(value: Any, diagnostic: str, catalogue: Catalogue) -> None:
    given = mapping()
    given["nodes"]["tokens"]["vocab_size"] = value
    assert errors_of(given, catalogue)[0] == diagnostic


@pytest.mark.slow
def test_a_mapping_that_holds_itself_is_refused(catalogue: Catalogue) -> None:
    given = mapping()
    given["nodes"]["tokens"]["position"] = given
    assert "values are nested deeper than 40" in errors_of(given, catalogue)[0]
    assert "more than 20000 values" in errors_of({**mapping(), "outputs": ["body"] * 30_000}, catalogue)[0]


@pytest.mark.parametrize("read", [tfkit.build, parse_spec])
def test_files_that_are_no_specs_are_refused(read: Callable[[Any], Any]) -> None:
    with pytest.raises(tfkit.InputError, match=r"TFK073.*int"):
        read(3)


def test_the_catalogue_is_that_of_everything_installed_unless_given(catalogue: Catalogue) -> None:
    assert tfkit.load_spec(SPECS / "gpt2.yaml") == load_spec(SPECS / "gpt2.yaml", catalogue)
    assert tfkit.parse_spec(mapping()) == parse_spec(mapping(), catalogue)
