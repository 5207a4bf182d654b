"""The entries of the built-in norms: names, options and weights."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ...plugin import Norm, Options, Parameter


class LayerNormOptions(Options):
    """Options of `layer_norm`. Without `affine` it has no weights, and `bias` is not read."""

    eps: Annotated[float, Field(gt=0.0, description="added to the variance")] = 1e-5
    bias: Annotated[bool, Field(description="whether a learned shift follows the learned scale")] = True
    affine: Annotated[bool, Field(description="whether there are weights at all: a learned scale and shift")] = True


class RmsNormOptions(Options):
    """Options of `rms_norm`."""

    eps: Annotated[float, Field(gt=0.0, description="added to the mean square")] = 1e-6
    unit_offset: Annotated[bool, Field(description="whether the scale is 1 + weight, with weights that start at 0 (Gemma)")] = (
        False
    )
    affine: Annotated[bool, Field(description="whether there is a learned scale")] = True


class BatchNormOptions(Options):
    """Options of `batch_norm`."""

    eps: Annotated[float, Field(gt=0.0, description="added to the variance")] = 1e-5
    momentum: Annotated[float, Field(gt=0.0, le=1.0, description="share of a batch in the running statistics")] = 0.1
    affine: Annotated[bool, Field(description="whether there are weights: a learned scale and shift")] = True


def layer_norm_parameters(options: LayerNormOptions, width: int) -> tuple[Parameter, ...]:
    if not options.affine:
        return ()
    scale = Parameter("weight", "norm_scale", (width,))
    return (scale, Parameter("bias", "norm_bias", (width,))) if options.bias else (scale,)


def rms_norm_parameters(options: RmsNormOptions, width: int) -> tuple[Parameter, ...]:
    if not options.affine:
        return ()
    return (Parameter("weight", "norm_offset" if options.unit_offset else "norm_scale", (width,)),)


def batch_norm_parameters(options: BatchNormOptions, width: int) -> tuple[Parameter, ...]:
    affine = (Parameter("weight", "norm_scale", (width,)), Parameter("bias", "norm_bias", (width,))) if options.affine else ()
    mean = Parameter("running_mean", "running_mean", (width,), trainable=False, buffer=True)
    variance = Parameter("running_var", "running_variance", (width,), trainable=False, buffer=True)
    return *affine, mean, variance


ENTRIES: list[Norm] = [
    Norm(
        name="layer_norm",
        summary="subtracts the mean, divides by the standard deviation, then scales and shifts",
        reference="https://arxiv.org/abs/1607.06450",
        options=LayerNormOptions,
        parameters=layer_norm_parameters,
        claims=lambda options: frozenset({"scale_invariant", "shift_invariant", "zero_mean", "unit_rms", "rounds_once"}),
        build="tfkit.builtin.norm.norms:layer_norm",
        source="tfkit.builtin.norm:layer_norm.py.jinja",
    ),
    Norm(
        name="rms_norm",
        summary="divides by the root of the mean square, then scales",
        reference="https://arxiv.org/abs/1910.07467",
        options=RmsNormOptions,
        parameters=rms_norm_parameters,
        claims=lambda options: frozenset({"scale_invariant", "unit_rms", "rounds_once"}),
        build="tfkit.builtin.norm.norms:rms_norm",
        source="tfkit.builtin.norm:rms_norm.py.jinja",
    ),
    Norm(
        name="batch_norm",
        summary="as `layer_norm`, with the mean and deviation of each feature over the tokens of a batch without padding",
        reference="https://arxiv.org/abs/1502.03167",
        options=BatchNormOptions,
        parameters=batch_norm_parameters,
        claims=lambda options: frozenset({"rounds_once"}),
        build="tfkit.builtin.norm.norms:batch_norm",
        source="tfkit.builtin.norm:batch_norm.py.jinja",
        over_batch=True,
    ),
    Norm(
        name="none",
        summary="changes nothing",
        parameters=lambda options, width: (),
        claims=lambda options: frozenset({"identity", "rounds_once"}),
        build="tfkit.builtin.norm.norms:no_norm",
    ),
]
