"""The tests of the blocks see a tensor whose axes contradict what a boundary declares."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from jaxtyping import TypeCheckError

from tfkit import Model
from tfkit.attention import rendering
from tfkit.inspection import Padding
from tfkit.plugin import AttentionInputs, Mask


def test_axes_of_one_call_must_agree() -> None:
    query, key = torch.zeros(2, 4, 3, 8), torch.zeros(2, 4, 5, 8)
    AttentionInputs(query, key, key, Mask(), 1.0)
    with pytest.raises(TypeCheckError):
        AttentionInputs(query, key, key[:, :, 1:], Mask(), 1.0)


def test_dtypes_are_checked() -> None:
    with pytest.raises(TypeCheckError):
        Padding(visible=torch.ones(2, 3))


def test_results_are_checked() -> None:
    with pytest.raises(TypeCheckError):
        rendering.expand_heads(torch.zeros(2, 2, 3, 4), 5)


def test_a_module_is_checked(model_of: Callable[..., Model]) -> None:
    layer = model_of("decoder").nodes["body"].layers[0]  # type: ignore[index, union-attr]
    with pytest.raises(TypeCheckError):
        layer(torch.zeros(3, 24), None, 0)
