"""`tfkit positions`: the values that are drawn, for every scheme of the catalogue, and the files."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from tfkit import InputError, build, load_spec, save
from tfkit.builder.position_schemes import position_values
from tfkit.io.loading import weight_reader
from tfkit.view.position_schemes import _heat

ROOT = Path(__file__).parents[2]
TINY = ROOT / "specs" / "transformer-tiny.yaml"


def values_of(catalogue, *changes, count=50, path=TINY):
    return position_values(load_spec(path, catalogue, ["expect=null", *changes]), catalogue, count)


def test_every_scheme_of_the_catalogue_has_values(catalogue):
    options = {"learned": "{kind: learned, max_len: 40}"}
    schemes = [entry for entry, _ in catalogue.ready("position") if entry.acts] + [catalogue.find("position", "learned")]
    assert len({entry.name for entry in schemes}) >= 8
    for entry in schemes:
        if entry.name == "sinusoidal_2d":
            found = values_of(catalogue, path=ROOT / "specs" / "vit-tiny.yaml")
        else:
            found = values_of(catalogue, f"defaults.position={options.get(entry.name, entry.name)}")
        assert {each.kind for each in found} == {entry.name}
        assert {each.place for each in found} == entry.acts
        assert all(each.table.isfinite().all() for each in found)
        assert all(each.similarity is None or each.similarity.diagonal().allclose(torch.ones(()).double()) for each in found)


def test_sinusoids_are_those_of_the_paper(catalogue):
    [found] = values_of(catalogue)
    assert (found.name, found.learned, tuple(found.table.shape)) == ("source, target", False, (50, 128))
    for position, pair in ((0, 0), (7, 3), (49, 63)):
        angle = position / 10000 ** (2 * pair / 128)
        both = found.table[position, 2 * pair : 2 * pair + 2].tolist()
        assert both == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)


@pytest.mark.parametrize(("kind", "first", "second"), [("rotary_half", 5, 21), ("rotary_interleaved", 10, 11)])
def test_rotary_angles_are_position_times_frequency(catalogue, kind, first, second):
    [found] = values_of(catalogue, f"defaults.position={kind}")
    assert tuple(found.table.shape) == (50, 32)
    angle = 9 * 10000 ** (-2 * 5 / 32)
    angle = math.remainder(angle, 2 * math.pi)
    assert found.table[9, [first, second]].tolist() == pytest.approx([angle, -angle], abs=1e-5)
    assert found.similarity[3, 13] == pytest.approx(float(found.similarity[30, 40]), abs=1e-6)


def test_biases_are_by_distance(catalogue):
    encoder, decoder = values_of(catalogue, "defaults.position=alibi", count=20)
    assert (encoder.first, tuple(encoder.table.shape)) == (-19, (4, 39))
    assert (decoder.first, tuple(decoder.table.shape)) == (-19, (4, 20))
    for head in range(4):
        assert encoder.table[head, 19 + 6] == pytest.approx(-6 * 2 ** (-2 * (head + 1)))
        assert decoder.table[head, 19 - 6] == encoder.table[head, 19 + 6]
    shaw = values_of(catalogue, "defaults.position=relative_shaw")
    assert [each.name for each in shaw[:2]] == ["encoder.0.self_attention", "encoder.1.self_attention"]


@pytest.mark.slow
def test_learned_tables_are_read_from_a_model(catalogue, tfkit, tmp_path):
    spec = load_spec(TINY, catalogue, ["expect=null", "defaults.position={kind: learned, max_len: 30}"])
    model = build(spec, catalogue, seed=1)
    table = model.nodes["target"].position.table.detach()
    save(model, tmp_path / "model", catalogue=catalogue)
    place, before = tmp_path / "p.svg", tmp_path / "model" / "spec.yaml"
    done = tfkit("positions", tmp_path / "model", "-o", place, "--before", before, "--json")
    assert [(each["name"], each["learned"], each["shape"]) for each in done.json()["schemes"]] == [
        ("source", True, [30, 128]), ("target", True, [30, 128]),
    ]  # fmt: skip
    assert len(ElementTree.parse(place).getroot()) > 0
    with weight_reader(tmp_path / "model") as read:
        found = position_values(spec, catalogue, 50, read)
    assert torch.equal(found[1].table, table)
    initial = position_values(spec, catalogue, 50)
    assert torch.equal(initial[1].table, build(spec, catalogue, seed=0).nodes["target"].position.table.detach())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["specs/rnnsearch.yaml", "-o", "p.svg"], "has no position scheme"),
        (["specs/transformer-tiny.yaml", "-o", "p.pdf"], "ends in none of .html, .png or .svg"),
        (["specs/transformer-tiny.yaml", "-o", "p.svg", "--positions", "2000"], "at most 1024"),
        (["specs/transformer-tiny.yaml", "-o", "p.svg", "--positions", "1"], "from 2"),
        (["specs/transformer-tiny.yaml", "-o", "README.md"], "ends in none of"),
        (["specs/transformer-tiny.yaml", "-o", "p.svg", "--before", "specs/gpt2.yaml"], "has none of the position schemes"),
        (["specs/transformer-tiny.yaml"], "required"),
    ],
)
def test_a_wrong_command_line_is_reported(tfkit, words, message):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    done = tfkit("positions", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize(
    "changes",
    [
        ["defaults.position={kind: learned, max_len: 1024}", "nodes.tokens.d_model=65536"],
        ["defaults.position=rotary_half", "defaults.attention.head_dim=256"],
        ["defaults.position=alibi", "defaults.attention.num_heads=64"],
    ],
)
def test_schemes_of_too_many_numbers_are_refused(catalogue, changes):
    path = ROOT / "specs" / "gpt-char.yaml"
    with pytest.raises(InputError, match="has 1,024 x 65,536 numbers, and at most 16,777,216 are evaluated"):
        values_of(catalogue, *changes, "defaults.attention.head_dim=4", *changes, path=path, count=1024)


def test_a_heat_map_of_a_large_table_is_drawn_from_a_part_of_it():
    figure = Figure()
    axes = figure.subplots()
    table = np.arange(3 * 5000, dtype=np.float32).reshape(3, 5000)
    _heat(figure, axes, table, "title", "y", "x", (0, 0), "RdBu")
    [image] = axes.images
    assert image.get_array().shape == (3, 1667)
    assert image.get_extent() == [-0.5, 4999.5, 2.5, -0.5]
