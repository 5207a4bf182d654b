"""A pooled vector is that of the tokens alone, however many there are and however narrow the dtype."""

from __future__ import annotations

import pytest
import torch

from tfkit.inspection import Padding
from tfkit.nn.heads import Pool
from tfkit.plugin.model_parts import NodeOutput


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_under_padding_is_that_of_the_tokens_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    # In float16 the sum alone would overflow, bfloat16 can represent neither the sum nor 999.
    x = (torch.rand(1, 1000, 64) + (100 if dtype == torch.float16 else 1)).to(dtype)
    padded = NodeOutput(x, Padding(visible=torch.arange(1000)[None] < 999))
    mean = Pool("pooled", "mean", None, None)(None, padded).tensor
    assert torch.equal(mean, x[:, :999].double().mean(1).to(dtype))
