"""Which parameters of a model are trained, and at which learning rate."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..slots.options import AsTuple, Options, Positive

Pattern = Annotated[str, Field(min_length=1)]


class Parameters(Options):
    """Patterns match the names of parameters without `nodes.`, whole or up to a dot: `tokens`, `encoder.layers.0`,
    `encoder.layers.*.norms`. `*` stands for any text without a dot.

    The learning rate of a parameter is that of the schedule times its factor in `rates`, times `layer_decay` to the power k: k
    is the number of layers between the parameter and the outputs, its own included; an input node counts as a layer."""

    freeze: Annotated[tuple[Pattern, ...], AsTuple, Field(description="patterns of the parameters that are not trained")] = ()
    rates: Annotated[
        dict[Pattern, Positive] | None,
        Field(description="factors of the learning rate by pattern; the first pattern that matches counts"),
    ] = None
    layer_decay: Annotated[
        float | None, Field(gt=0.0, le=1.0, description="factor of the learning rate from each layer to the layer below")
    ] = None
