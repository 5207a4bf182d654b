"""Directories of saved models that nobody vouches for: each file replaced by what it must not be, each byte altered.

Each such directory gives an error with its code, or a model with the same numbers.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as tensors_of
from torch import Tensor

import tfkit
from hostile_files import REPLACED
from tfkit import Model
from tfkit.cli import main
from tfkit.data import read_labels, read_tokenisers
from tfkit.files import file_record
from tfkit.io import model_in
from tiers import EVERY_CASE

pytestmark = pytest.mark.xdist_group("hostile_store")  # its module fixture is built once

SPEC = """
tfkit: 1
name: small
defaults:
  {d_model: 8, vocab_size: 11, position: sinusoidal, placement: pre, norm: rms_norm, attention: {num_heads: 2},
   ffn: {d_ff: 8, activation: relu}}
nodes:
  tokens:  {kind: tokens}
  decoder: {kind: stack, input: tokens, num_layers: 1, causal: true}
  logits:  {kind: token_logits, input: decoder, share: tokens}
outputs: [logits]
"""
SMALL = ("versions.json", "plan.json", "spec.yaml")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, catalogue: tfkit.Catalogue) -> Path:
    model = tfkit.build(tfkit.parse_spec(SPEC, catalogue), catalogue, seed=3)
    return tfkit.save(model, tmp_path_factory.mktemp("hostile") / "written")


@pytest.fixture
def place(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "model"))


def list_again(place: Path, name: str) -> None:
    """Write down the size and digest of a file that was altered, as someone would who means harm."""
    versions = json.loads((place / "versions.json").read_text())
    versions["files"][name] = file_record(place / name)
    (place / "versions.json").write_text(json.dumps(versions))


def logits(model: Model) -> Tensor:
    with torch.no_grad():
        return model.eval()(tokens=torch.arange(10).view(2, 5))["logits"]


@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize("name", [*SMALL, "model.safetensors"])
def test_an_altered_file_is_an_error(place: Path, name: str, how: str, catalogue: tfkit.Catalogue) -> None:
    REPLACED[how](place / name)
    with pytest.raises(tfkit.StoreError, match=rf"TFK082.*{name}"):
        tfkit.load(place, catalogue=catalogue)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["empty", "list", "object", "null", "deep", "deep object", "sparse", "bytes"])
@pytest.mark.parametrize("name", ["plan.json", "spec.yaml", "model.safetensors"])
def test_a_file_replaced_with_its_listing_is_an_error(place: Path, name: str, how: str, catalogue: tfkit.Catalogue) -> None:
    REPLACED[how](place / name)
    list_again(place, name)
    with pytest.raises((tfkit.StoreError, tfkit.SpecError), match=rf"TFK0\d\d.*{name}|{name}.*TFK0\d\d"):
        tfkit.load(place, catalogue=catalogue)


FLIPS = (0x01, 0x10, 0x20, 0xFF)


@pytest.mark.slow
@pytest.mark.parametrize("flip", FLIPS)
@pytest.mark.parametrize("name", ["versions.json", "plan.json"])
def test_a_flipped_byte_is_an_error_or_changes_nothing(
    written: Path, place: Path, name: str, flip: int, catalogue: tfkit.Catalogue
) -> None:
    """At every position, with one of the four. A plan is listed again each time, so that its content is checked too."""
    content, want = (written / name).read_bytes(), logits(tfkit.load(written, catalogue=catalogue))
    diagnostics = 0
    positions = range(len(content)) if EVERY_CASE else range(FLIPS.index(flip), len(content), len(FLIPS))
    for number in positions:
        (place / name).write_bytes(content[:number] + bytes([content[number] ^ flip]) + content[number + 1 :])
        if name != "versions.json":
            list_again(place, name)
        try:
            model = tfkit.load(place, catalogue=catalogue)
        except tfkit.TfkitError:
            diagnostics += 1
            continue
        assert torch.equal(logits(model), want), number
    assert diagnostics > len(positions) / 4


WRONG: tuple[Any, ...] = (None, True, -1, 1.5, 10**30, "", "x", "../x", [], [1], [[]], {}, {"a": 1})


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places_in(each, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("name", ["versions.json", "plan.json"])
def test_a_value_of_another_type_is_an_error_or_changes_nothing(
    written: Path, place: Path, name: str, catalogue: tfkit.Catalogue
) -> None:
    data, want = json.loads((written / name).read_text()), logits(tfkit.load(written, catalogue=catalogue))
    for path in places_in(data):
        for new in WRONG:
            (place / name).write_text(json.dumps(changed(data, path, new)))
            if name != "versions.json":
                list_again(place, name)
            try:
                model = tfkit.load(place, catalogue=catalogue)
            except tfkit.TfkitError:
                continue
            assert torch.equal(logits(model), want), (path, new)


def test_the_place_of_a_wrong_value_is_named(place: Path, catalogue: tfkit.Catalogue) -> None:
    versions = json.loads((place / "versions.json").read_text())
    versions["files"]["plan.json"]["bytes"] = "12"
    (place / "versions.json").write_text(json.dumps(versions))
    with pytest.raises(tfkit.StoreError, match=r"TFK082 .*versions\.json: files\.plan\.json\.bytes: .*integer"):
        tfkit.load(place, catalogue=catalogue)


def test_a_sparse_file_of_weights_is_refused_before_it_is_read(place: Path, catalogue: tfkit.Catalogue) -> None:
    """Its 8 TB would be hashed for hours: the size is compared first, and where that is listed too, the header."""
    os.truncate(place / "model.safetensors", 8 << 40)
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*has 8,796,093,022,208 bytes, but "):
        tfkit.load(place, catalogue=catalogue)
    versions = json.loads((place / "versions.json").read_text())
    versions["files"]["model.safetensors"]["bytes"] = 8 << 40
    (place / "versions.json").write_text(json.dumps(versions))
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*its tensors have [\d,]+ bytes, but the file holds 8,796,\d"):
        tfkit.load(place, catalogue=catalogue)


def test_large_text_files_of_a_model_are_refused_before_they_are_read(place: Path, catalogue: tfkit.Catalogue) -> None:
    (place / "more").touch()
    os.truncate(place / "more", 8 << 40)
    versions = json.loads((place / "versions.json").read_text())
    versions["files"]["more"] = {"bytes": 8 << 40, "sha256": "0" * 64}
    (place / "versions.json").write_text(json.dumps(versions))
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*without the weights have 8,796,\d.* bytes"):
        tfkit.load(place, catalogue=catalogue)


def test_many_empty_tensors_are_refused_by_the_size_of_the_header(place: Path, catalogue: tfkit.Catalogue) -> None:
    many = ",".join(f'"t{number}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for number in range(300_000))
    header = f"{{{many}}}".encode()
    (place / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    list_again(place, "model.safetensors")
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*its header has [\d,]+ bytes, and at most"):
        tfkit.load(place, catalogue=catalogue)


def test_a_spec_of_many_layers_needs_the_weights_for_them(place: Path, catalogue: tfkit.Catalogue) -> None:
    """Modules for them would be made for hours."""
    spec = (place / "spec.yaml").read_text()
    assert "repeat: 1" in spec
    (place / "spec.yaml").write_text(spec.replace("repeat: 1", "repeat: 1000000"))
    list_again(place, "spec.yaml")
    with pytest.raises(tfkit.TfkitError, match=r"TFK0(82|45)"):
        tfkit.load(place, catalogue=catalogue)


def test_a_saved_spec_extends_no_other_file(place: Path, catalogue: tfkit.Catalogue) -> None:
    spec = place / "spec.yaml"
    (place.parent / "base.yaml").write_text(spec.read_text())
    spec.write_text("tfkit: 1\nname: small\nextends: ../base.yaml\n")
    list_again(place, "spec.yaml")
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*spec\.yaml extends another file"):
        tfkit.load(place, catalogue=catalogue)


@pytest.mark.parametrize("name", ["../model/plan.json", "/etc/passwd", "shards/x", "", ".."])
def test_a_listing_names_only_files_of_its_directory(place: Path, name: str, catalogue: tfkit.Catalogue) -> None:
    versions = json.loads((place / "versions.json").read_text())
    versions["files"][name] = versions["files"]["plan.json"]
    (place / "versions.json").write_text(json.dumps(versions))
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*names the file .*, which is elsewhere"):
        tfkit.load(place, catalogue=catalogue)


def test_other_weights_of_the_right_size_are_an_error(place: Path, catalogue: tfkit.Catalogue) -> None:
    size = (place / "model.safetensors").stat().st_size
    (place / "model.safetensors").write_bytes(tensors_of({"a": torch.zeros(size, dtype=torch.uint8)})[:size])
    list_again(place, "model.safetensors")
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*model\.safetensors"):
        tfkit.load(place, catalogue=catalogue)


# ---- a run that is read as its best model


@pytest.fixture
def run(place: Path) -> Path:
    """A directory in which the best model of a run stands."""
    models = place.parent / "run" / "models"
    models.mkdir(parents=True)
    place.rename(models / "step-7")
    (models / "best.json").write_text(json.dumps({"model": "step-7", "metric": "loss", "score": -1.5}))
    return models.parent


def test_the_best_model_of_a_run_is_found(run: Path, tmp_path: Path) -> None:
    assert model_in(run) == run / "models" / "step-7"
    assert model_in(run / "models" / "step-7") == run / "models" / "step-7"
    (tmp_path / "latest").symlink_to(run)  # the name that the user gives may be a link
    assert model_in(tmp_path / "latest") == tmp_path / "latest" / "models" / "step-7"


def test_a_run_is_loaded_as_its_best_model(run: Path, catalogue: tfkit.Catalogue) -> None:
    found, want = tfkit.load(run, catalogue=catalogue), tfkit.load(run / "models" / "step-7", catalogue=catalogue)
    assert all(torch.equal(value, want.state_dict()[name]) for name, value in found.state_dict().items())
    with pytest.raises(tfkit.StoreError, match="name a directory that `tfkit build -o` or `tfkit train -o` wrote"):
        tfkit.load(run / "models", catalogue=catalogue)


@pytest.mark.parametrize(
    "change",
    [
        *({"model": name} for name in (3, None, "../../x", "/tmp", "..", ".", "", "a/b", "a\0b", "\ud800", "x" * 900_000)),
        {"score": "high"}, {"score": None}, {"metric": 1}, {"more": 1},
    ],
)  # fmt: skip
def test_a_best_json_with_another_value_is_refused(run: Path, change: dict[str, Any]) -> None:
    best = {"model": "step-7", "metric": "loss", "score": 1.0} | change
    (run / "models" / "best.json").write_text(json.dumps(best))
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*best\.json.{,300}$"):
        model_in(run)


@pytest.mark.parametrize("how", REPLACED)
def test_an_altered_best_json_is_an_error(run: Path, how: str) -> None:
    REPLACED[how](run / "models" / "best.json")
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*best\.json"):
        model_in(run)


@pytest.mark.parametrize("name", ["models", "models/step-7"])
def test_no_link_inside_a_run_is_followed(run: Path, name: str) -> None:
    (run / name).rename(run.parent / "elsewhere")
    (run / name).symlink_to(run.parent / "elsewhere")
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*is a link, and no link is followed here"):
        model_in(run)


# ---- what lies beside a model, and commands


@pytest.mark.parametrize("how", REPLACED)
def test_a_replaced_tokeniser_is_an_error(tmp_path: Path, how: str) -> None:
    (tmp_path / "tokeniser.json").write_text("{}")
    REPLACED[how](tmp_path / "tokeniser.json")
    with pytest.raises(tfkit.InputError, match=r"TFK104.*tokeniser\.json"):
        read_tokenisers(tmp_path, ("target",))


@pytest.mark.parametrize("how", [how for how in REPLACED if how != "list"])
def test_replaced_labels_are_an_error(tmp_path: Path, how: str) -> None:
    (tmp_path / "labels.json").write_text('["a", "b"]')
    assert read_labels(tmp_path) == ("a", "b")
    REPLACED[how](tmp_path / "labels.json")
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*labels\.json"):
        read_labels(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["generate", "classify", "translate"])
@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize("name", ["versions.json", "tokeniser.json"])
def test_commands_report_errors_of_a_file(
    place: Path, name: str, how: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "tokeniser.json").write_text("{}")
    REPLACED[how](place / name)
    assert main([command, str(place), *(["--prompt", "x"] if command == "generate" else [])]) == 2
    error = capsys.readouterr().err
    assert error.startswith("TFK")
    assert "TFK099" not in error
