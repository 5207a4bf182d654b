"""A model that was moved after it was built is checked on its present device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tfkit
from tfkit.plugin import AttentionBackend, Device, hookimpl

SPEC = """
tfkit: 1
name: small
nodes:
  source: {kind: tokens, d_model: 8, vocab_size: 9}
  encoder: {kind: stack, input: source, num_layers: 1, placement: pre, norm: layer_norm, attention: {num_heads: 2},
            ffn: {d_ff: 8, activation: relu}}
outputs: [encoder]
"""


class Narrow:
    """A plugin with a backend for bfloat16 alone."""

    def __init__(self, eager: AttentionBackend) -> None:
        self.eager = eager

    @hookimpl
    def tfkit_attention_backends(self) -> list[AttentionBackend]:
        can = self.eager.capabilities.model_copy(update={"dtypes": frozenset({"bfloat16"})})
        return [AttentionBackend(name="acme.narrow", summary="bfloat16 only", attend=self.eager.attend, capabilities=can)]


def test_casting_a_model_chooses_a_backend_for_the_new_dtype() -> None:
    catalogue = tfkit.load_catalogue()
    catalogue = catalogue.with_plugin(Narrow(catalogue.find("backend", "eager")), "acme")
    model = tfkit.build(tfkit.parse_spec(SPEC, catalogue), catalogue).bfloat16()
    model.set_backend("acme.narrow")
    assert model.sites == {"encoder.0.self_attention": "acme.narrow"}
    assert model(source=torch.tensor([[1, 2]]))["encoder"].dtype == torch.bfloat16


class Elsewhere:
    """A plugin with a backend for the meta device alone, as others are for CUDA alone."""

    def __init__(self, eager: AttentionBackend) -> None:
        self.eager = eager

    @hookimpl
    def tfkit_attention_backends(self) -> list[AttentionBackend]:
        can = self.eager.capabilities.model_copy(update={"devices": (Device(kind="meta"),)})
        return [AttentionBackend(name="acme.meta", summary="meta only", attend=self.eager.attend, capabilities=can)]


@pytest.fixture
def elsewhere(catalogue: tfkit.Catalogue) -> tfkit.Catalogue:
    return catalogue.with_plugin(Elsewhere(catalogue.find("backend", "eager")), "acme")


REFUSED = (
    r"TFK060 encoder\.0\.self_attention: backend acme\.meta .*device cpu is not among meta; .*eager.*move the model to meta"
)


def test_a_model_is_built_for_a_device_and_moved_there_later(elsewhere: tfkit.Catalogue) -> None:
    ids = torch.tensor([[1, 2]])
    model = tfkit.build(tfkit.parse_spec(SPEC, elsewhere), elsewhere, backend="acme.meta")
    with pytest.raises(tfkit.BackendRefused, match=REFUSED):
        model(source=ids)
    assert model.to("meta")(source=ids.to("meta"))["encoder"].shape == (1, 2, 8)
    model.to_empty(device="cpu").set_backend("eager")
    assert model(source=ids)["encoder"].shape == (1, 2, 8)
    with pytest.raises(tfkit.BackendRefused, match=r"device meta is not among cpu, cuda; .*move the model to cpu or cuda"):
        model.to("meta")(source=ids.to("meta"))


def test_a_list_of_backends_is_read_anew_on_each_device(elsewhere: tfkit.Catalogue) -> None:
    ids = torch.tensor([[1, 2]])
    model = tfkit.build(tfkit.parse_spec(SPEC, elsewhere), elsewhere, backend=["acme.meta", "eager"])
    assert model(source=ids)["encoder"].device.type == "cpu"
    assert model.to("meta")(source=ids.to("meta"))["encoder"].device.type == "meta"


@pytest.mark.parametrize("backend", ["cudnn", "varlen", {"kind": "sdpa", "kernel": "cudnn"}])
def test_backends_of_cuda_wait_for_the_device(backend: object, catalogue: tfkit.Catalogue, tmp_path: Path) -> None:
    spec = tfkit.parse_spec(SPEC, catalogue, ["source.d_model=32", "encoder.attention.num_heads=2"])
    model = tfkit.build(spec, catalogue, backend=backend, dtype=torch.bfloat16)
    for one in (model, tfkit.load(tfkit.save(model, tmp_path / "saved"))):
        with pytest.raises(tfkit.BackendRefused, match=r"TFK060 encoder\.0\.self_attention.*(cpu is not among cuda|CUDA only)"):
            one(source=torch.tensor([[1, 2]]))


def test_a_device_can_be_checked_before_the_call(elsewhere: tfkit.Catalogue) -> None:
    model = tfkit.build(tfkit.parse_spec(SPEC, elsewhere), elsewhere, backend="acme.meta")
    model.retarget(torch.device("meta"), torch.float32)
    with pytest.raises(tfkit.BackendRefused, match=REFUSED):
        model.retarget(torch.device("cpu"), torch.float32)
