"""The share of input tokens that a decoder gets from the data in training, as a function of the step n, counted from 1.
The other input tokens are the model's own predictions: scheduled sampling, https://arxiv.org/abs/1506.03099, section 2.4

constant          ratio
linear            from `start` at step 1 to `end` at step `steps`, then `end`
inverse_sigmoid   k / (k + exp(n / k))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from ..slots.options import Entry, Options

Share = Annotated[float, Field(ge=0.0, le=1.0, description="share of input tokens from the data")]


class ConstantOptions(Options):
    """The same share at every step."""

    ratio: Share


class LinearOptions(Options):
    """A share that changes by the same amount at every step."""

    start: Annotated[float, Field(ge=0.0, le=1.0, description="share of input tokens from the data at the first step")] = 1.0
    end: Annotated[float, Field(ge=0.0, le=1.0, description="share from step `steps` on")] = 0.0
    steps: Annotated[int, Field(ge=2, description="the first step with the share `end`")]


class InverseSigmoidOptions(Options):
    """A share that falls slowly, then fast, then slowly; it is one half at step k ln k."""

    k: Annotated[float, Field(ge=1.0, description="the larger, the later the share falls")]


@dataclass(frozen=True, kw_only=True)
class TeacherForcing(Entry):
    """`ratio(options, step)` is the share of input tokens from the data at a step, counted from 1."""

    ratio: Callable[[Any, int], float]


def linear(options: LinearOptions, step: int) -> float:
    done = min((step - 1) / (options.steps - 1), 1.0)
    return options.start + (options.end - options.start) * done


def inverse_sigmoid(options: InverseSigmoidOptions, step: int) -> float:
    return options.k / (options.k + math.exp(min(step / options.k, 700.0)))  # exp(710) overflows


TEACHER_FORCING = (
    TeacherForcing(
        name="constant", summary="one share", options=ConstantOptions, ratio=lambda options, step: float(options.ratio)
    ),
    TeacherForcing(name="linear", summary="a share that changes evenly", options=LinearOptions, ratio=linear),
    TeacherForcing(
        name="inverse_sigmoid", summary="a share that falls as k / (k + exp(n / k))", options=InverseSigmoidOptions,
        ratio=inverse_sigmoid,
    ),
)  # fmt: skip
