"""A saved model: the same numbers bit for bit, and no pickle."""

from __future__ import annotations

import json
import pickletools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tfkit
from saved_model import FILES, SPEC, names, rewrite
from tfkit import Model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_numbers_come_back(
    dtype: torch.dtype, spec: tfkit.ModelSpec, catalogue: tfkit.Catalogue, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    model = tfkit.build(spec, catalogue, dtype=dtype, seed=3)
    with torch.no_grad():
        model.nodes["logits"].bias.normal_()
    where = tfkit.save(model, tmp_path / "deep" / "out")
    assert where == tmp_path / "deep" / "out"
    assert names(where) == FILES
    assert names(where.parent) == {"out"}
    back = tfkit.load(where)
    assert torch.equal(logits_of(back), logits_of(model))
    assert back.spec == model.spec
    state, saved = model.state_dict(), back.state_dict()
    assert list(saved) == list(state)
    for name, tensor in state.items():
        assert saved[name].dtype is dtype
        assert torch.equal(saved[name], tensor)
    trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert {name: parameter.requires_grad for name, parameter in back.named_parameters()} == trainable
    assert not trainable["nodes.logits.bias"]
    back.train()(source=torch.ones(1, 2).long(), target=torch.ones(1, 2).long())["logits"].sum().backward()


@pytest.mark.slow
def test_requested_backends_of_every_site_are_loaded(
    model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    model.set_backend({"kind": "sdpa", "kernel": "math"}, "encoder.*")
    model.set_backend(["flex", "eager"], "decoder.1.*")
    back = tfkit.load(tfkit.save(model, tmp_path / "out"))
    assert back.requested_backends == model.requested_backends
    assert back.sites == model.sites
    assert torch.equal(logits_of(back), logits_of(model))
    assert set(tfkit.load(tmp_path / "out", backend="eager").sites.values()) == {"eager"}


def test_an_unsupported_backend_request_can_be_replaced_at_loading(
    model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    tfkit.save(model, tmp_path / "out")
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    plan["sites"] = {site: [{"kind": "sdpa", "kernel": "cudnn"}] for site in plan["sites"]}
    rewrite(tmp_path / "out", "plan.json", json.dumps(plan).encode())
    with pytest.raises(tfkit.BackendRefused, match="not used with a bias"):
        tfkit.load(tmp_path / "out")
    assert torch.equal(logits_of(tfkit.load(tmp_path / "out", backend="auto")), logits_of(model))


def test_a_saved_model_loads_with_the_backends_that_were_set(
    spec: tfkit.ModelSpec, catalogue: tfkit.Catalogue, tmp_path: Path
) -> None:
    spec_with_cudnn = tfkit.parse_spec(SPEC.replace("num_kv_heads: 2", "backend: {kind: sdpa, kernel: cudnn}"), catalogue)
    with pytest.raises(tfkit.BackendRefused):
        tfkit.build(spec_with_cudnn, catalogue)
    tfkit.save(tfkit.build(spec_with_cudnn, catalogue, backend="eager"), tmp_path / "out")
    assert set(tfkit.load(tmp_path / "out").sites.values()) == {"eager"}


@pytest.mark.parametrize("name", ["../out", "/out", "a/b", "..", "", "plan.json", "versions.json", "a\0b"])
def test_texts_are_saved_with_the_model_under_other_names_than_its_files(name: str, model: Model, tmp_path: Path) -> None:
    with pytest.raises(tfkit.StoreError, match="TFK081"):
        tfkit.save(model, tmp_path / "out", texts={name: "text"})
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_directory_can_have(name: str, model: Model, tmp_path: Path) -> None:
    with pytest.raises(tfkit.StoreError, match="TFK081"):
        tfkit.save(model, tmp_path / name)
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*no file can have this name"):
        tfkit.load(tmp_path / name)


def test_no_pickle_is_in_the_files(model: Model, tmp_path: Path) -> None:
    for path in tfkit.save(model, tmp_path / "out").iterdir():
        content = path.read_bytes()
        assert not content.startswith((b"\x80", b"PK"))
        with pytest.raises((ValueError, IndexError)):
            list(pickletools.genops(content))


def test_a_model_without_numbers_cannot_be_saved(spec: tfkit.ModelSpec, catalogue: tfkit.Catalogue, tmp_path: Path) -> None:
    with pytest.raises(tfkit.StoreError, match=r"TFK081.*meta"):
        tfkit.save(tfkit.build(spec, catalogue, device="meta"), tmp_path / "out")
    assert names(tmp_path) == set()


@pytest.mark.slow
def test_a_compiled_model_is_saved_like_the_model_itself(
    model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    tfkit.save(torch.compile(model, backend="eager"), tmp_path / "out")
    assert torch.equal(logits_of(tfkit.load(tmp_path / "out")), logits_of(model))


def test_it_can_be_read_by_others(model: Model, tmp_path: Path, catalogue: tfkit.Catalogue) -> None:
    """The directory's rights are those of any new directory, and each file is what it seems."""
    from safetensors.torch import load_file

    where = tfkit.save(model, tmp_path / "out")
    (tmp_path / "plain").mkdir()
    assert where.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert set(load_file(where / "model.safetensors")) == set(model.state_dict())
    assert tfkit.load_spec(where / "spec.yaml", catalogue) == model.spec
    versions = json.loads((where / "versions.json").read_text())
    assert versions["torch"] == torch.__version__
    assert versions["plugins"]["tfkit-core"] == tfkit.__version__
    assert {row["site"] for row in json.loads((where / "plan.json").read_text())["table"]} == set(model.sites)


def test_tied_tensors_are_reported_before_the_save(model: Model, tmp_path: Path) -> None:
    decoder, encoder = model.nodes["decoder"], model.nodes["encoder"]
    decoder.layers[0].norms["self_attention"].weight = encoder.layers[0].norms["self_attention"].weight
    with pytest.raises(tfkit.StoreError, match="TFK081"):
        tfkit.save(model, tmp_path / "out")
    assert names(tmp_path) == set()
