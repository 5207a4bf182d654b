"""T5's initialisation, after Mesh TensorFlow (https://github.com/tensorflow/mesh) and Raffel et al. 2020
(https://arxiv.org/abs/1910.10683). All weights are normal with mean 0 and standard deviation

    query                             (d_model head_dim)^-0.5     includes the 1/sqrt(head_dim) of the scores: T5 has scale 1
    every other linear map            fan_in^-0.5                 so d_model^-0.5, or (heads head_dim)^-0.5 for the output
    embedding and learned positions   1
    relative table                    d_model^-0.5

Untied logits are a linear map, as in Mesh TensorFlow. Hugging Face uses a standard deviation of 1 for them.
"""

from __future__ import annotations

from ...plugin import NoOptions, Parameter
from ...slots.init import Distribution, InitContext
from .constants import constant, fans

TABLES = frozenset({"embedding", "segment_table", "position_table"})


def draw(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """The distribution of one parameter."""
    return constant(parameter) or Distribution("normal", spread=_spread(parameter, context))


def _spread(parameter: Parameter, context: InitContext) -> float:
    if parameter.role in TABLES:
        return 1.0
    if parameter.role == "relative_table":
        return float(context.d_model**-0.5)
    fan_in, _ = fans(parameter)
    if parameter.role == "query" and context.head_dim:
        fan_in *= context.head_dim
    return float(fan_in**-0.5)
