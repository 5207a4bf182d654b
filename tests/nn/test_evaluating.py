"""A model is used in evaluation mode, and is as before afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tfkit.nn.evaluating import evaluating


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_restored_after_an_error(training: bool) -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout())).train(training)
    during: list[bool] = []

    def fail() -> None:
        during.extend([torch.is_grad_enabled(), *(module.training for module in model.modules())])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), evaluating(model):
        fail()
    assert not any(during)
    assert all(module.training == training for module in model.modules())
    assert torch.is_grad_enabled()


def test_a_part_in_training_mode_is_evaluated_too() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout())).eval()
    model[1][0].train()
    with evaluating(model):
        assert not model[1][0].training
