"""A small model, and what it computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tfkit
from saved_model import SPEC
from tfkit import Model


@pytest.fixture
def spec(catalogue: tfkit.Catalogue) -> tfkit.ModelSpec:
    return tfkit.parse_spec(SPEC, catalogue)


@pytest.fixture
def model(spec: tfkit.ModelSpec, catalogue: tfkit.Catalogue) -> Model:
    return tfkit.build(spec, catalogue, seed=3).eval()


@pytest.fixture
def logits_of() -> Callable[[Model], Tensor]:
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(0, 50, (3, 9), generator=generator), torch.randint(0, 50, (3, 7), generator=generator)

    def run(model: Model) -> Tensor:
        with torch.no_grad():
            return model.eval()(source=source, target=target)["logits"]

    return run
