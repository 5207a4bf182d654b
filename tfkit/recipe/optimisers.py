"""Optimisers, as a recipe names them; torch's own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..slots.options import Entry, Options, Positive, Probability


class AdamOptions(Options):
    """The defaults are the paper's."""

    beta1: Annotated[Probability, Field(description="decay of the mean of the gradients")] = 0.9
    beta2: Annotated[Probability, Field(description="decay of the mean of their squares")] = 0.98
    eps: Annotated[Positive, Field(description="added to the root of that mean")] = 1e-9


class AdamWOptions(AdamOptions):
    """`weight_decay` shrinks matrices and tables, not the gains and biases (parameters of one dimension)."""

    weight_decay: Annotated[float, Field(ge=0.0, description="share of a weight that goes, times the rate")] = 0.01


OPTIMISERS = (
    Entry(name="adam", summary="Adam", options=AdamOptions, reference="https://arxiv.org/abs/1412.6980"),
    Entry(
        name="adamw", summary="Adam with decoupled weight decay", options=AdamWOptions,
        reference="https://arxiv.org/abs/1711.05101",
    ),
)  # fmt: skip
