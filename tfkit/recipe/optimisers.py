"""Optimisers, as a recipe names them; torch's own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..slots.options import Entry, Options, Positive, Probability


class AdamOptions(Options):
    """The defaults are the paper's."""

    beta1: Probability = 0.9
    beta2: Probability = 0.98
    eps: Positive = 1e-9


class AdamWOptions(AdamOptions):
    """`weight_decay` shrinks matrices and tables, not the gains and biases (parameters of one dimension)."""

    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01


OPTIMISERS = (
    Entry(name="adam", summary="Adam", options=AdamOptions, reference="https://arxiv.org/abs/1412.6980"),
    Entry(
        name="adamw", summary="Adam with decoupled weight decay", options=AdamWOptions,
        reference="https://arxiv.org/abs/1711.05101",
    ),
)  # fmt: skip
