"""Initialisation by one normal distribution.

    normal   every weight ~ N(0, std^2)
    gpt2     every weight ~ N(0, 0.02^2). The projections that add to the residual, attention_output and ffn_out, are divided
             by sqrt(2 num_layers), since a stack has 2 num_layers residual branches: Radford et al. 2019, section 2.3.
             OpenAI's code draws the position table with 0.01; Hugging Face and tfkit use 0.02.
    bert     every weight ~ N(0, 0.02^2), truncated at two standard deviations: `create_initializer` of
             https://github.com/google-research/bert. Truncation reduces the standard deviation to 0.88 of the nominal one.
             Hugging Face's BERT does not truncate; `{kind: normal, std: 0.02}` is equal to it.

Vectors start at zero, norm scales at one.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ...plugin import NoOptions, Options, Parameter
from ...slots.init import Distribution, InitContext
from .constants import constant

RESIDUAL_WRITERS = frozenset({"attention_output", "ffn_out"})


class NormalOptions(Options):
    """Options of `normal`."""

    std: Annotated[float, Field(gt=0.0, description="standard deviation of every weight")] = 0.02


def draw(options: NormalOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """N(0, std^2)."""
    return constant(parameter) or Distribution("normal", spread=options.std)


def draw_gpt2(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """N(0, 0.02^2), divided by sqrt(2 num_layers) for projections that add to the residual."""
    spread = 0.02
    if parameter.role in RESIDUAL_WRITERS and context.num_layers:
        spread *= (2 * context.num_layers) ** -0.5
    return constant(parameter) or Distribution("normal", spread=spread)


def draw_bert(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """N(0, 0.02^2), truncated at two standard deviations."""
    return constant(parameter) or Distribution("truncated_normal", spread=0.02)
