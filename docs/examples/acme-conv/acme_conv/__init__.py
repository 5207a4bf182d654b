"""The declaration of the sub-layer kind `acme.conv`: its options, weights, costs and limits. This file imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tfkit.plugin import Parameter, Size, SublayerKind, SublayerOptions, hookimpl, linear
from tfkit.plugin.model_parts import Cost, Sizes, SublayerContext


class ConvolutionOptions(SublayerOptions):
    """Options of `acme.conv`."""

    width: Annotated[Size, Field(description="tokens under the window, an odd number")] = 31


def parameters(options: ConvolutionOptions, context: SublayerContext) -> tuple[Parameter, ...]:
    M = context.width
    return (
        *linear("enter", "ffn_in", M, 2 * M),
        Parameter("window.weight", "convolution", (M, 1, options.width)),
        Parameter("window.bias", "bias", (M,)),
        *linear("leave", "ffn_out", M, M),
    )


def costs(options: ConvolutionOptions, context: SublayerContext, sizes: Sizes) -> tuple[Cost, ...]:
    tokens, M = sizes.batch * sizes.queries, context.width
    return (Cost("convolution", 2 * tokens * M * (2 * M + options.width + M), tokens * 6 * M),)


def unsupported(options: ConvolutionOptions, context: SublayerContext) -> tuple[tuple[str, str, str], ...]:
    broken = []
    if context.causal:
        broken.append(("width", "the window reaches to later tokens, and the stack is causal", "remove the sub-layer"))
    if options.width % 2 == 0:
        broken.append(("width", f"width {options.width} is even, so that the window has no centre", "use an odd number"))
    return tuple(broken)


@hookimpl
def tfkit_sublayer_kinds() -> list[SublayerKind]:
    return [
        SublayerKind(
            name="acme.conv",
            summary="the convolution module of Conformer",
            reference="https://arxiv.org/abs/2005.08100",
            contract=1,
            options=ConvolutionOptions,
            option_keys=("acme_conv",),
            reads="self",
            parameters=parameters,
            costs=costs,
            unsupported=unsupported,
            build="acme_conv.convolution:build",
            formula="acme_conv.formula:convolution",
            source="acme_conv:convolution.py.jinja",
        )
    ]
