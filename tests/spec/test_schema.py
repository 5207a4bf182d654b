"""The JSON Schema of the written form: it accepts what loads, and refuses every planted typo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tfkit import Catalogue
from tfkit.spec import json_schema
from tfkit.spec.located import Diagnostics, plain
from tfkit.spec.reader import read_file, read_text

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator(catalogue: Catalogue) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(json.dumps(json_schema(catalogue))))


def data_of(text: str) -> Any:
    return plain(read_text(text, "a.yaml", Diagnostics()))


@pytest.mark.slow
def test_schema_is_a_schema_without_loose_ends(catalogue: Catalogue) -> None:
    schema = json_schema(catalogue)
    jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(schema)
    assert "x-slot" not in text
    for name in schema["$defs"]:
        assert f'"#/$defs/{name}"' in text
    assert json_schema(catalogue) == schema


def test_correct_spec_is_accepted(text: str, validator: jsonschema.Draft202012Validator) -> None:
    assert [error.message for error in validator.iter_errors(data_of(text))] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_shipped_spec_is_accepted(path: Path, installed: Catalogue) -> None:
    schema = json_schema(installed)
    assert [
        error.message
        for error in jsonschema.Draft202012Validator(schema).iter_errors(plain(read_file(str(path), Diagnostics())))
    ] == []


TYPOS = [
    ("tfkit: 1", "tfkit: 2"),
    ("tfkit: 1\n", ""),
    ("name: small\n", ""),
    ("outputs: [logits]\n", ""),
    ("outputs: [logits]", "outputs: []"),
    ("outputs: [logits]", "outputs: logits"),
    ("outputs:", "output:"),
    ("defaults:", "default:"),
    ("d_model: 64", "dmodel: 64"),
    ("d_model: 64", "d_model: wide"),
    ("d_model: 64", "d_model: 0"),
    ("d_model: 64", "d_model: null"),
    ("vocab_size", "vocab"),
    ("sinusoidal", "sinusoidl"),
    ("sinusoidal", "{kind: sinusoidal, bas: 2.0}"),
    ("sinusoidal", "{kind: sinusoidal, base: two}"),
    ("sinusoidal", "{kind: sinusoidal, max_len: 5}"),
    ("sinusoidal", "{knd: sinusoidal}"),
    ("sinusoidal", "{kind: rotary_half, scaling: {kind: linear, factr: 2.0}}"),
    ("placement: post", "placement: pots"),
    ("placement: post", "placement: {kind: parallel, norms: both}"),
    ("placement: post", "placement: 3"),
    ("kind: layer_norm", "kind: layernorm"),
    ("eps: 1.0e-5", "epsilon: 1.0e-5"),
    ("eps: 1.0e-5", "eps: small"),
    ("eps: 1.0e-5", "eps: -1.0"),
    ("num_heads: 4", "n_heads: 4"),
    ("num_heads: 4", "num_heads: four"),
    ("num_heads: 4", "num_heads: 4, name: x"),
    ("num_heads: 4", "num_heads: 4, bias: {kay: false}"),
    ("num_heads: 4", "num_heads: 4, dropout: 1.5"),
    ("num_heads: 4", "num_heads: 4, backend: [sdpa, eagr]"),
    ("num_heads: 4", "num_heads: 4, backend: {kind: auto, fast: true}"),
    ("num_heads: 4", "num_heads: 4, query_key_norm: {kind: rms_norm, ep: 1.0}"),
    ("attention: {", "atention: {"),
    ("ffn: {d_ff", "ffn: {dff"),
    ("activation: relu", "activation: rellu"),
    ("{kind: tokens}", "{kind: token}"),
    ("{kind: tokens}", "{}"),
    ("{kind: tokens}", "tokens"),
    ("{kind: tokens}", "null"),
    ("{kind: tokens}", "{kind: tokens, scale: sqrt_dmodel}"),
    ("source:  {kind", "outputs: {kind"),
    ("source:  {kind", "a.b: {kind"),
    ("share: source", "shared: source"),
    ("input: source", "inputs: source"),
    ("input: source", "input: [source]"),
    ("num_layers: 2", "num_layer: 2"),
    ("num_layers: 2", "num_layers: 2.5"),
    ("num_layers: 2", "layers: [{repeat: 2, nrom: layer_norm}]"),
    ("num_layers: 2", "layers: [{repeat: 0}]"),
    ("num_layers: 2", "layers: [{repeat: 2, layers: [{shared: maybe}]}]"),
    ("num_layers: 2", "layers: []"),
    ("num_layers: 2", "layers: [{repeat: 2, layers: []}]"),
    ("num_layers: 2", "num_layers: 2, sublayers: []"),
    ("num_layers: 2", "num_layers: 2, sublayers: [self_atention]"),
    ("num_layers: 2", "num_layers: 2, sublayers: [{kind: ffn, dff: 3}]"),
    ("num_layers: 2", "num_layers: 2, sublayers: [{name: x}]"),
    ("num_layers: 2", "num_layers: 2, d_ff: 3"),
    ("num_layers: 2", "num_layers: 2, acme_conv: {wdth: 3}"),
    ("causal: true", "causal: yes"),
    ("name: small", "name: small\nexpect: {parameter: 3}"),
    ("name: small", "name: small\nextend: base.yaml"),
]


@pytest.mark.parametrize(("old", "new"), TYPOS, ids=[f"{number} {new}" for number, (_, new) in enumerate(TYPOS)])
def test_planted_typo_is_refused(old: str, new: str, text: str, validator: jsonschema.Draft202012Validator) -> None:
    assert old in text
    assert not validator.is_valid(data_of(text.replace(old, new, 1)))


EXTENDING = "tfkit: 1\nname: a\nextends: base.yaml\n"


@pytest.mark.parametrize(
    "body",
    [
        "nodes: {tokens: {vocab_size: 3}, first: null}\n",
        "defaults: {norm: {eps: null}, position: {offset: 2}, attention: null}\noutputs: [a]\n",
        "nodes: {body: {attention: {window: null}, layers: [{repeat: 2}]}}\n",
        "expect: {parameters: 5}\n",
    ],
)
def test_spec_that_extends_another_may_remove_and_leave_out(body: str, validator: jsonschema.Draft202012Validator) -> None:
    assert [error.message for error in validator.iter_errors(data_of(EXTENDING + body))] == []


@pytest.mark.parametrize(
    "body",
    [
        "nodes: {tokens: {vocab: 3}}\n",
        "nodes: {tokens: {kind: token}}\n",
        "defaults: {norm: {epsilon: null}}\n",
        "outputs: 3\n",
        "node: {}\n",
    ],
)
def test_typo_in_a_spec_that_extends_another_is_refused(body: str, validator: jsonschema.Draft202012Validator) -> None:
    assert not validator.is_valid(data_of(EXTENDING + body))


def test_schema_knows_a_plugin_as_soon_as_it_is_installed(
    text: str, installed: Catalogue, validator: jsonschema.Draft202012Validator
) -> None:
    data = data_of(text.replace("num_layers: 2", "num_layers: 2, sublayers: [{kind: acme.conv, width: 3}]", 1))
    assert validator.is_valid(data)
    assert not jsonschema.Draft202012Validator(json_schema(installed)).is_valid(data)
