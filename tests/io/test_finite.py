"""Weights that hold NaN or infinity are named when a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tfkit
from tfkit import Model
from tfkit.io.finite import check_finite

NAME = "nodes.source.embedding.weight"
BAD = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", BAD)
def test_one_number_anywhere_is_found(dtype: torch.dtype, value: float) -> None:
    """At places that a vectorised pass reads in different ways: the first, one of a full block, the last of a rest."""
    for shape, at in (((1000, 3), 0), ((1000, 3), 1531), ((1000, 3), 2999), ((1,), 0), ((), 0), ((7,), 6)):
        tensor = torch.ones(shape, dtype=dtype)
        tensor.view(-1)[at] = value
        with pytest.raises(tfkit.StoreError, match=f"TFK084 x: of the {tensor.numel():,} numbers of `a`, 1 (NaN|infinite)"):
            check_finite(Path("x"), {"a": tensor})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_numbers_are_finite(dtype: torch.dtype) -> None:
    """Their sums are not."""
    most = torch.finfo(dtype).max
    check_finite(Path("x"), {"a": torch.full((999,), most, dtype=dtype), "b": torch.full((999,), -most, dtype=dtype)})
    check_finite(Path("x"), {"none": torch.empty(0, 3, dtype=dtype), "ids": torch.arange(3)})


def test_the_file_the_tensor_and_the_counts_are_named(model: Model, tmp_path: Path) -> None:
    with torch.no_grad():
        weight = model.get_parameter(NAME)
        weight[3, :2], weight[0, 5] = torch.nan, torch.inf
    path = tfkit.save(model, tmp_path / "out") / "model.safetensors"
    for precision in ("float32", "int8"):
        with pytest.raises(tfkit.StoreError) as caught:
            tfkit.load(tmp_path / "out", precision=precision)
        [one] = caught.value.diagnostics
        assert (one.code, one.message) == ("TFK084", f"{path}: of the 1,200 numbers of `{NAME}`, 2 NaN and 1 infinite")
        assert "--allow-nan" in one.fix
        assert "allow_nan=True" in one.fix


def test_of_many_tensors_the_first_are_named_and_the_others_counted(model: Model, tmp_path: Path) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    tfkit.save(model, tmp_path / "out")
    count = len(dict(model.state_dict()))
    with pytest.raises(tfkit.StoreError, match=rf"{count - 3} more of {count} tensors hold NaN or infinity") as caught:
        tfkit.load(tmp_path / "out")
    assert len(caught.value.diagnostics) == 4


def test_a_model_with_nan_is_loaded_on_request(model: Model, tmp_path: Path) -> None:
    with torch.no_grad():
        model.get_parameter(NAME)[3, 1] = torch.nan
    tfkit.save(model, tmp_path / "out")
    assert int(tfkit.load(tmp_path / "out", allow_nan=True).get_parameter(NAME).isnan().sum()) == 1
