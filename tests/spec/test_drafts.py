"""The language can say every model of the lineage: 21 drafts, some with node kinds that come later (stand-ins here)."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml

import tfkit
from tfkit import Catalogue, load_spec, parse_spec
from tfkit.spec import json_schema, resolved, to_json, to_yaml
from tfkit.spec.located import Diagnostics, plain
from tfkit.spec.reader import read_file

DRAFTS = sorted((Path(__file__).parent / "drafts").glob("*.yaml"))
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "acme-conv"
"""The plugin of the tutorial about sub-layers, which the draft `orders` uses."""


def test_there_are_21_drafts() -> None:
    assert len(DRAFTS) == 21


@pytest.mark.slow
@pytest.mark.parametrize("path", DRAFTS, ids=lambda path: path.stem)
def test_draft_loads_and_its_resolved_form_loads_back_equal(path: Path, catalogue: Catalogue) -> None:
    spec = load_spec(path, catalogue)
    again = parse_spec(to_yaml(spec), catalogue)
    assert again == spec
    assert resolved(again) == resolved(spec)
    assert parse_spec(to_json(spec), catalogue) == spec
    assert to_yaml(again) == to_yaml(spec)


@pytest.fixture(scope="module")
def with_example(installed: Catalogue) -> Iterator[Catalogue]:
    sys.path.insert(0, str(EXAMPLE))
    yield installed.with_plugin(importlib.import_module("acme_conv"), "acme_conv")
    sys.path.remove(str(EXAMPLE))


@pytest.mark.parametrize("path", DRAFTS, ids=lambda path: path.stem)
def test_draft_builds_with_installed_packages_and_the_example(path: Path, with_example: Catalogue) -> None:
    spec = load_spec(path, with_example)
    graph = tfkit.graph_of(spec)
    assert tfkit.build(spec, with_example, device="meta").parameter_count() == graph.parameters()


@pytest.mark.parametrize("path", DRAFTS, ids=lambda path: path.stem)
def test_a_yaml_1_1_reader_reads_the_resolved_form_equally(path: Path, catalogue: Catalogue) -> None:
    spec = load_spec(path, catalogue)
    assert yaml.safe_load(to_yaml(spec)) == resolved(spec)
    assert json.loads(to_json(spec)) == resolved(spec)


@pytest.fixture(scope="module")
def validator(catalogue: Catalogue) -> jsonschema.Draft202012Validator:
    schema = json_schema(catalogue)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(json.loads(json.dumps(schema)))


@pytest.mark.slow
@pytest.mark.parametrize("path", DRAFTS, ids=lambda path: path.stem)
def test_schema_accepts_the_draft_and_its_resolved_form(
    path: Path, validator: jsonschema.Draft202012Validator, catalogue: Catalogue
) -> None:
    written = plain(read_file(str(path), Diagnostics()))
    assert [error.message for error in validator.iter_errors(written)] == []
    assert [error.message for error in validator.iter_errors(resolved(load_spec(path, catalogue)))] == []
