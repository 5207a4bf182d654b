"""Initialisation of recurrent networks.

orthogonal   the products of a state with itself are orthogonal, one matrix per gate: Saxe et al. 2014
             (https://arxiv.org/abs/1312.6120); the rest as `xavier`
rnnsearch    the same; W_a and U_a ~ N(0, 0.001^2), v_a = 0, the rest ~ N(0, 0.01^2): Bahdanau et al. 2015, appendix B.1
uniform      every weight uniform on -bound .. bound, biases zero: Luong et al. 2015, section 4.1 (0.1)
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ...plugin import NoOptions, Options, Parameter
from ...slots.init import Distribution, InitContext
from . import xavier
from .constants import constant


class UniformOptions(Options):
    """Options of `uniform`."""

    bound: Annotated[float, Field(gt=0.0, description="largest size of a weight")] = 0.1


def draw_orthogonal(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """Orthogonal for products of states, otherwise Xavier's."""
    if parameter.role == "cell_state":
        return Distribution("orthogonal", spread=1.0)
    return xavier.draw(options, parameter, context)


def draw_rnnsearch(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """The distributions of RNNsearch."""
    if parameter.role == "cell_state":
        return Distribution("orthogonal", spread=1.0)
    if parameter.role == "score_out":
        return Distribution("constant")
    spread = 0.001 if parameter.role in ("score_query", "score_key") else 0.01
    return constant(parameter) or Distribution("normal", spread=spread)


def draw_uniform(options: UniformOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """U(-bound, bound)."""
    return constant(parameter) or Distribution("uniform", spread=options.bound)
