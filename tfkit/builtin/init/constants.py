"""Constants of every built-in initialiser: norm scales start at one, a logit scale at log(1 / 0.07), the factors of a value
residual at 1/2, all other vectors at zero.

Each initialiser draws tensors with two or more axes itself, including those with unknown roles.
"""

from __future__ import annotations

from math import log, prod

from ...plugin import Parameter
from ...slots.init import Distribution

ONES = frozenset({"norm_scale", "mix_scale"})


def constant(parameter: Parameter) -> Distribution | None:
    """One for scales, zero for every other vector or scalar (biases, norm offsets, the weights of a layer mix), else None."""
    if parameter.role in ONES:
        return Distribution("constant", centre=1.0)
    if parameter.role == "value_residual":  # the mean
        return Distribution("constant", centre=0.5)
    if parameter.role == "logit_scale":  # Radford et al. 2021, section 2.5
        return Distribution("constant", centre=log(1 / 0.07))
    return Distribution("constant") if len(parameter.shape) < 2 else None


def fans(parameter: Parameter) -> tuple[int, int]:
    """(fan_in, fan_out) of a linear map (fan_out, fan_in) or of a convolution (fan_out, fan_in, *window)."""
    window = prod(parameter.shape[2:])
    return parameter.shape[1] * window, parameter.shape[0] * window
