"""Missing devices, tensors on other devices, copies and pickles: reported before anything is computed."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tfkit import Model

IDS = torch.randint(3, 19, (2, 5), generator=torch.Generator().manual_seed(0))
ABSENT = 'there is no device .* here.*use the device "cpu"'


@pytest.fixture
def model(model_of: Callable[..., Model]) -> Model:
    return model_of("encoder-decoder", "encoder.num_layers=1", "decoder.num_layers=1")


def test_a_model_knows_where_it_is(model: Model) -> None:
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    moved = copy.deepcopy(model).to(torch.float64)
    assert (moved.device, moved.dtype) == (torch.device("cpu"), torch.float64)
    assert model.to("meta").device == torch.device("meta")


@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.to("cuda:99"),
        lambda model: model.to(device="cuda:99"),
        lambda model: model.to(torch.device("cuda", 99)),
        lambda model: model.to("cuda:99", torch.float64),
        lambda model: model.cuda(99),
        lambda model: model.to("gpu"),
        lambda model: model.to_empty(device="cuda:99"),
    ],
)
def test_a_device_that_is_not_here(move: Callable[[Model], Any], model: Model) -> None:
    with pytest.raises(tfkit.BuildError, match=ABSENT) as error:
        move(model)
    assert [diagnostic.code for diagnostic in error.value.diagnostics] == ["TFK046"]
    assert model.device == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
@pytest.mark.parametrize("move", [lambda model: model.to("cuda"), lambda model: model.cuda()])
def test_no_gpu_at_all(move: Callable[[Model], Any], model: Model) -> None:
    with pytest.raises(tfkit.BuildError, match="TFK046 there is no device cuda here"):
        move(model)


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "xpu:7", "cpu:7", b"cpu"])
def test_nothing_is_built_on_a_device_that_is_not_here(device: Any, spec_of: Callable[..., tfkit.ModelSpec]) -> None:
    with pytest.raises(tfkit.BuildError, match=f"TFK046 there is no device {device} here"):
        tfkit.build(spec_of(), device=device)


def test_torch_has_its_own_way_otherwise(model: Model) -> None:
    assert model.to(IDS.float()).dtype == torch.float32
    assert model.to(dtype=torch.float64).dtype == torch.float64
    assert model.to("cpu", torch.float32, non_blocking=True).dtype == torch.float32
    with pytest.raises(TypeError, match="floating point"):
        model.to(torch.int64)


@pytest.mark.parametrize(
    ("arguments", "label"),
    [
        ({"source": IDS.to("meta")}, "`source`"),
        ({"masks": {"target": (IDS > 0).to("meta")}}, "mask of `target`"),
        ({"lengths": {"source": torch.tensor([5, 3], device="meta")}}, "lengths of `source`"),
    ],
)
def test_a_tensor_on_another_device(arguments: dict[str, Any], label: str, model: Model) -> None:
    with pytest.raises(tfkit.InputError, match=rf"TFK071.*{label}.* on meta, the model on cpu; .*model\.device"):
        model(**{"source": IDS, "target": IDS, **arguments})


def test_labels_on_another_device(model: Model) -> None:
    with pytest.raises(tfkit.InputError, match="TFK071 the labels of `logits` are on meta, its logits on cpu"):
        model(source=IDS, target=IDS, labels=IDS.to("meta"))


def test_a_step_on_another_device(model: Model) -> None:
    state = model.start(source=IDS)
    with pytest.raises(tfkit.InputError, match="TFK071 `target` is on meta, the model on cpu"):
        model.step(state, IDS[:, :1].to("meta"))


@pytest.mark.parametrize(
    "write",
    [
        pickle.dumps,
        lambda model: pickle.dump(model, io.BytesIO()),
        lambda model: torch.save(model, io.BytesIO()),
        lambda model: torch.save({"model": model}, io.BytesIO()),
    ],
)
def test_a_model_is_not_pickled(write: Callable[[Model], Any], model: Model) -> None:
    with pytest.raises(tfkit.StoreError, match=r"TFK081 a model cannot be pickled.*tfkit\.save\(model, directory\)"):
        write(model)


def test_a_failed_pickle_leaves_no_model_in_its_file(model: Model, tmp_path: Path) -> None:
    with pytest.raises(tfkit.StoreError), (tmp_path / "model.pkl").open("wb") as file:
        pickle.dump(model, file)
    assert (tmp_path / "model.pkl").stat().st_size == 0


def test_weights_are_saved_by_torch(model: Model) -> None:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    again = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again.load_state_dict(torch.load(file))
    assert torch.equal(again(source=IDS, target=IDS).logits, model(source=IDS, target=IDS).logits)


def test_copies_are_models(model: Model) -> None:
    deep, shallow = copy.deepcopy(model), copy.copy(model)
    want = model(source=IDS, target=IDS).logits
    for other in (deep, shallow):
        assert type(other) is type(model)
        assert torch.equal(other(source=IDS, target=IDS).logits, want)
        assert other.spec == model.spec
    assert shallow.nodes is model.nodes
    assert not {id(each) for each in deep.parameters()} & {id(each) for each in model.parameters()}
    both = copy.deepcopy([model, model])
    assert both[0] is both[1]
    assert both[0] is not model
    with torch.no_grad():
        next(deep.parameters()).add_(1.0)
    assert torch.equal(model(source=IDS, target=IDS).logits, want)
