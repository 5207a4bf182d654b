"""The loaded spec: equality, immutability, and the place of every value."""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from tfkit import Catalogue, Location, ModelSpec, load_spec, parse_spec
from tfkit.slots.layer import depth

SpecOf = Callable[..., ModelSpec]


def test_equality_ignores_locations(text: str, spec_of: SpecOf) -> None:
    assert spec_of(text) == spec_of("# a comment\n" + text)
    assert spec_of(text) != spec_of(text, "name=other")
    assert spec_of(text) != spec_of(text, "encoder.ffn.d_ff=3")
    assert spec_of(text) == copy.deepcopy(spec_of(text))
    assert spec_of(text) != "small"


def test_spec_is_immutable(text: str, spec_of: SpecOf) -> None:
    spec = spec_of(text)
    with pytest.raises(ValidationError):
        spec.name = "b"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        spec.nodes["source"].options.d_model = 3


PLACES = [
    ("nodes.encoder.layers.0.sublayers.0.num_heads", 10, 26, "defaults.attention.num_heads"),
    ("nodes.encoder.layers.0.sublayers.1.d_ff", 11, 15, "defaults.ffn.d_ff"),
    ("nodes.encoder.layers.0.norm.eps", 9, 33, "defaults.norm.eps"),
    ("nodes.encoder.layers.0.repeat", 15, 53, "nodes.encoder.num_layers"),
    ("nodes.encoder.num_layers", 15, 53, "nodes.encoder.num_layers"),
    ("nodes.source.d_model", 4, 12, "defaults.d_model"),
    ("nodes.decoder.memory", 16, 49, "nodes.decoder.memory"),
    ("nodes.source.embedding_norm", 13, 12, "nodes.source.embedding_norm"),
    ("nodes.encoder.layers.0.sublayers.0.head_dim", 15, 12, "nodes.encoder.self_attention.head_dim"),
    ("nodes.encoder", 15, 12, "nodes.encoder"),
    ("outputs.0", 18, 11, "outputs.0"),
    ("expect.parameters", 1, 1, "expect.parameters"),
    ("nowhere", 1, 1, "nowhere"),
]


@pytest.mark.parametrize(("path", "line", "column", "written"), PLACES)
def test_every_path_has_its_place(path: str, line: int, column: int, written: str, text: str, spec_of: SpecOf) -> None:
    spec = spec_of(text)
    assert spec.location_of(path) == Location("a.yaml", line, column)
    assert spec.written_path(path) == written
    diagnostic = spec.diagnostic("TFK040", path, "message", "fix")
    assert (diagnostic.location, diagnostic.path, diagnostic.message, diagnostic.fix) == (
        Location("a.yaml", line, column),
        written,
        "message",
        "fix",
    )


def test_value_of_an_override_has_its_place_there(text: str, spec_of: SpecOf) -> None:
    location = spec_of(text, "defaults.attention.num_heads=8").location_of("nodes.encoder.layers.0.sublayers.0.num_heads")
    assert location == Location("--set defaults.attention.num_heads=8", 1, 30)


def test_spec_that_was_not_read_has_no_places(text: str, spec_of: SpecOf, catalogue: Catalogue) -> None:
    spec = ModelSpec.model_validate(
        {"tfkit": 1, "name": "a", "nodes": dict(spec_of(text).nodes), "outputs": ["logits"]}, context={"catalogue": catalogue}
    )
    assert spec.location_of("nodes.source") is None
    assert spec.written_path("nodes.source") == "nodes.source"


def test_a_billion_layers_stay_unwritten(text: str, spec_of: SpecOf) -> None:
    start = time.process_time()
    spec = spec_of(text, "encoder.num_layers=1000000000")
    nested = spec_of(text, "encoder.layers=[{repeat: 1000000000, layers: [{repeat: 1000000000}, {repeat: 2}]}]")
    assert time.process_time() - start < 0.5
    assert depth(spec.nodes["encoder"].options.layers) == 10**9
    assert depth(nested.nodes["encoder"].options.layers) == 10**18 + 2 * 10**9


def test_long_written_patterns_and_graphs_load(text: str, spec_of: SpecOf) -> None:
    layers = ", ".join(f"{{norm: {{eps: {index + 1}.0}}}}" for index in range(300))
    assert len(spec_of(text, f"encoder.layers=[{layers}]").nodes["encoder"].options.layers) == 300
    chain = "".join(f"  n{index}: {{kind: dense, input: {f'n{index - 1}' if index else 'encoder'}}}\n" for index in range(900))
    assert len(spec_of(text.replace("outputs: [", chain + "outputs: [n899, ")).nodes) == 905


JUNK = ", ".join(f"k{number}: 1" for number in range(900))
HOSTILE = {
    "many layers with a faulty default": ("num_heads: 4", f"num_heads: 4, {JUNK}"),
    "many layers with a faulty norm": ("kind: layer_norm", f"kind: layer_norm, {JUNK[:3000]}"),
    "many layers with a wrong value": ("num_heads: 4", "num_heads: x"),
}


@pytest.mark.slow
@pytest.mark.parametrize("row", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_checked_quickly(row: tuple[str, str], text: str, errors_of: Callable[..., list[object]]) -> None:
    old, new = row
    layers = "layers: [" + ", ".join(["{}"] * 5000) + "]"
    bad = text.replace(old, new, 1).replace("num_layers: 2", layers, 1)
    start = time.process_time()
    assert errors_of(bad)
    assert time.process_time() - start < 5


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_reading_a_spec_imports_neither_torch_nor_rich() -> None:
    heavy = "[name for name in ('torch', 'rich', 'numpy', 'jsonschema') if name in sys.modules]"
    code = f"import sys, tfkit.spec; from tfkit.catalogue import load_catalogue; load_catalogue(); print({heavy})"
    assert run(code) == "[]"


def test_loading_takes_milliseconds(catalogue: Catalogue, tmp_path: object, drafts: object) -> None:
    path = drafts / "transformer-base.yaml"  # type: ignore[operator]
    load_spec(path, catalogue)
    times = []
    for _ in range(7):
        start = time.process_time()
        load_spec(path, catalogue)
        times.append(time.process_time() - start)
    assert min(times) < 0.02


def test_same_text_under_another_file_name(text: str, catalogue: Catalogue) -> None:
    assert parse_spec(text, catalogue).location_of("name") == Location("<text>", 2, 7)
