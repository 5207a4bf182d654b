"""The class of a call names every property that the choice of a backend may depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model
from tfkit.attention.auto_table import AutoRow
from tfkit.attention.choice import CallClass
from tfkit.builtin.attention.entries import EAGER
from tfkit.inspection import BackendChoice, bind
from tfkit.plugin import AttentionInputs, DenseBias, Mask

LENGTHS, ROW = torch.tensor([3, 2]), torch.zeros(2, 4, dtype=torch.int64)
VISIBLE = torch.ones(2, 4, dtype=torch.bool)


def tensor(heads: int, length: int = 4, dim: int = 8, **options: Any) -> Tensor:
    return torch.zeros(2, heads, length, dim, **options)


def call(heads: int) -> AttentionInputs:
    return AttentionInputs(tensor(heads), tensor(heads), tensor(heads), Mask(offset=0), 1.0)


@pytest.fixture
def class_of(model_of: Callable[..., Model]) -> Callable[..., CallClass]:
    choice: BackendChoice = model_of(backend="eager").attention_sites()[0].attention.choices[0]

    def make(**changed: Any) -> CallClass:
        score = changed.pop("score", "dot")
        usual = {"query": tensor(4), "key": tensor(4), "value": tensor(4), "mask": Mask(offset=0), "scale": 1.0}
        choice.decided.clear()
        choice.select(AttentionInputs(**{**usual, **changed}), score)
        (found,) = choice.decided
        return found

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({"query": tensor(4, dtype=torch.float64), "key": tensor(4, dtype=torch.float64)}, {"dtype": "float64"}),
        ({"query": tensor(4, dim=6), "key": tensor(4, dim=6)}, {"head_dim": 6}),
        ({"value": tensor(4, dim=6)}, {"value_dim": 6}),
        ({"key": tensor(2), "value": tensor(2)}, {"grouped": True}),
        ({"query": tensor(4, requires_grad=True)}, {"gradients": True}),
        ({"bias": DenseBias(tensor(4, dim=4))}, {"bias": "dense"}),
        (
            {"bias": DenseBias(tensor(4, dim=4, requires_grad=True))},
            {"bias": "dense", "gradients": True, "bias_gradient": True},
        ),
        ({"dropout": 0.1}, {"dropout": True}),
        ({"softcap": 5.0}, {"softcap": True}),
        ({"score": "additive"}, {"score": "additive"}),
        ({"mask": Mask(offset=0, causal=True)}, {"mask_terms": frozenset({"causal"})}),
        ({"mask": Mask(offset=0, window=(1, 0))}, {"mask_terms": frozenset({"window"})}),
        ({"mask": Mask(offset=LENGTHS)}, {"tensor_offset": True}),
        ({"mask": Mask(offset=0, key_lengths=LENGTHS)}, {"mask_terms": frozenset({"key_lengths"})}),
        ({"mask": Mask(offset=0, query_lengths=LENGTHS)}, {"mask_terms": frozenset({"query_lengths"})}),
        ({"mask": Mask(offset=0, key_visible=VISIBLE)}, {"mask_terms": frozenset({"key_visible"})}),
        ({"mask": Mask(offset=0, query_segments=ROW, key_segments=ROW)}, {"mask_terms": frozenset({"segments"})}),
        ({"mask": Mask(offset=0, visible=VISIBLE[:, None, None])}, {"mask_terms": frozenset({"visible"})}),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_one_property_of_a_call_changes_its_own_fields(
    changed: dict[str, Any], fields: dict[str, Any], class_of: Callable[..., CallClass]
) -> None:
    assert class_of(**changed).request() == replace(class_of().request(), **fields)


def test_unlimited_lengths_share_a_class(class_of: Callable[..., CallClass]) -> None:
    assert class_of(query=tensor(4, length=3)) == class_of()


def test_a_class_is_found_again(model_of: Callable[..., Model]) -> None:
    model = model_of(backend="eager")
    choice = model.attention_sites()[0].attention.choices[0]
    for _ in range(2):
        choice.select(call(4))
    (found,) = choice.decided
    assert isinstance(found, CallClass)
    assert found.request().mask_terms == frozenset()


def test_calls_of_few_scores_are_a_class_of_their_own_where_a_row_says_so(class_of: Callable[..., CallClass]) -> None:
    assert class_of().scores is None
    row = AutoRow(device="cpu", dtypes={"float32"}, scores=(1, 200), relative_time=0.5)
    bound = bind(replace(EAGER, auto=(row,)), EAGER.options())
    choice = BackendChoice("site", ["eager"], (bound,), True, ())
    choice.select(call(4))  # 2 x 4 x 4 x 4 scores
    assert [found.scores for found in choice.decided] == [1]
    with pytest.raises(tfkit.BackendRefused, match="no figure"):
        choice.select(call(8))
