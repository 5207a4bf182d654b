"""Xavier initialisation as the Transformer's own code uses it (https://github.com/tensorflow/tensor2tensor).

    linear map            uniform on -+ sqrt(6 / (fan_in + fan_out))     Glorot and Bengio 2010, equation 16
    embedding, logits     normal with standard deviation width^-0.5, so that `scale: sqrt_d_model` gives unit variance
    relative tables       as a linear map: tensor2tensor's default for any variable

Glorot and Bengio: https://proceedings.mlr.press/v9/glorot10a.html
"""

from __future__ import annotations

from math import sqrt

from ...plugin import NoOptions, Parameter
from ...slots.init import Distribution, InitContext
from .constants import constant, fans

TABLES = frozenset({"embedding", "segment_table", "position_table", "registers", "logits"})


def draw(options: NoOptions, parameter: Parameter, context: InitContext) -> Distribution:
    """The distribution of one parameter."""
    if (fixed := constant(parameter)) is not None:
        return fixed
    if parameter.role in TABLES:
        return Distribution("normal", spread=parameter.shape[1] ** -0.5)
    return Distribution("uniform", spread=sqrt(6 / sum(fans(parameter))))
