"""The optimisers of a recipe, all from torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..slots.options import Entry, Options, Positive, Probability


class AdamOptions(Options):
    """Adam with the defaults of Vaswani et al. 2017."""

    beta1: Annotated[Probability, Field(description="decay of the mean of the gradients")] = 0.9
    beta2: Annotated[Probability, Field(description="decay of the mean of their squares")] = 0.98
    eps: Annotated[Positive, Field(description="added to the root of that mean")] = 1e-9


class AdamWOptions(AdamOptions):
    """`weight_decay` applies to matrices and tables, not to gains and biases (parameters of one dimension)."""

    weight_decay: Annotated[float, Field(ge=0.0, description="share of a weight removed per step, times the learning rate")] = (
        0.01
    )


OPTIMISERS = (
    Entry(name="adam", summary="Adam", options=AdamOptions, reference="https://arxiv.org/abs/1412.6980"),
    Entry(
        name="adamw", summary="Adam with decoupled weight decay", options=AdamWOptions,
        reference="https://arxiv.org/abs/1711.05101",
    ),
)  # fmt: skip
