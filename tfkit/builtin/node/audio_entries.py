"""The node kinds `features` and `convolutions`, without torch: frames of real numbers, and convolutions over a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Annotated

from pydantic import Field

from ...plugin import Component, NodeKind, Options, Parameter, Probability, Size, SlotField, component_default
from ...slots.cost import Cost, Sizes
from ...slots.node import FeatureRule, NodeContext, Rule, Signal
from ...slots.options import AsTuple
from ...slots.parameter import ParameterGroup
from ...slots.position import PositionSite
from .image_entries import position_rules
from .options import Init, Input, Position


class FeaturesOptions(Options):
    """Frames of real numbers, such as a log-mel spectrogram; an input of the model."""

    size: Annotated[Size, Field(description="height and width of an image; number of features of a frame")]


class Convolution(Options):
    """One convolution and the activation after it."""

    d_model: Annotated[Size, Field(description="output width")]
    width: Annotated[Size, Field(description="positions that one output reads")] = 3
    stride: Annotated[Size, Field(description="positions between the centres of two outputs")] = 1
    activation: Annotated[Component, SlotField("activation"), Field(description="not gated")] = component_default("identity")
    bias: bool = True


class ConvolutionsOptions(Options):
    """Convolutions over a sequence, one after the other; padded with zeros, so that stride 1 keeps the length."""

    input: Input
    convolutions: Annotated[
        tuple[Convolution, ...], AsTuple, Field(min_length=1, description="the convolutions, the first one first")
    ]
    position: Annotated[Position, Field(description="position scheme that acts on embeddings")] = component_default("none")
    dropout: Annotated[Probability, Field(description="dropout of the embeddings")] = 0.0
    init: Init = component_default("xavier")

    @property
    def stride(self) -> int:
        return prod(each.stride for each in self.convolutions)

    @property
    def d_model(self) -> int:
        return self.convolutions[-1].d_model


def site_of(options: ConvolutionsOptions, context: NodeContext) -> PositionSite:
    """Where the position scheme acts."""
    length = context.signals["input"].strided(options.stride, options.d_model).length
    return PositionSite(options.d_model, rows=length if isinstance(length, int) else None)


def widths(options: ConvolutionsOptions, context: NodeContext) -> Iterator[tuple[Convolution, int]]:
    """Every convolution with its input width."""
    width = context.signals["input"].width
    for each in options.convolutions:
        yield each, width
        width = each.d_model


def _output(options: ConvolutionsOptions, context: NodeContext) -> Signal:
    site = site_of(options, context)
    width = options.d_model + options.position.entry.widens(options.position.options, site)
    return context.signals["input"].strided(options.stride, width)


def _parameters(options: ConvolutionsOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    parameters: list[Parameter] = []
    for at, (each, width) in enumerate(widths(options, context)):
        parameters.append(Parameter(f"convolutions.{at}.weight", "convolution", (each.d_model, width, each.width)))
        if each.bias:
            parameters.append(Parameter(f"convolutions.{at}.bias", "bias", (each.d_model,)))
    position = options.position
    site = site_of(options, context)
    parameters += [p.under("position") for p in position.entry.parameters(position.options, site)]
    return (ParameterGroup(tuple(parameters)),)


def _costs(options: ConvolutionsOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    B, length = sizes[""].batch, sizes[""].queries
    flops = elements = 0
    for each, width in widths(options, context):
        kept = (length + each.width - 1) * width
        length = -(-length // each.stride)
        flops += 2 * B * length * each.width * width * each.d_model
        elements += B * (kept + length * each.d_model * (1 if each.activation.kind == "identity" else 2))
    position = options.position
    positions = position.entry.flops(position.options, site_of(options, context), B, length, length)
    return (Cost("convolutions", flops, elements), Cost("embedding", positions, B * length * _output(options, context).width))


def _rules(options: ConvolutionsOptions, context: NodeContext) -> tuple[Rule, ...]:
    signal = context.signals["input"]
    if signal.length is None:
        return (("input", f"`{options.input}` is one vector per row, {signal.axes}", "read a sequence"),)
    broken = [
        (
            f"convolutions.{at}.activation",
            f"{each.activation.kind} is gated, and a convolution has one output",
            "choose another",
        )
        for at, each in enumerate(options.convolutions)
        if each.activation.entry.gated
    ]
    return (*broken, *position_rules(options.position, site_of(options, context)))


FEATURES = NodeKind(
    name="features",
    summary="frames of real numbers (a log-mel spectrogram); an input of the model",
    options=FeaturesOptions,
    inherits=frozenset(),
    input_rule=lambda options, context: FeatureRule(options.size),
    output=lambda options, context: Signal(("B", f"L_{context.name}", options.size), f"L_{context.name}"),
    build="tfkit.builtin.node.build_inputs:features",
    source="tfkit.builtin.node:features.py.jinja",
)
CONVOLUTIONS = NodeKind(
    name="convolutions",
    summary="convolutions over a sequence, which may shorten it",
    reference="https://arxiv.org/abs/2212.04356",
    options=ConvolutionsOptions,
    inherits=frozenset({"position", "dropout", "init"}),
    stepwise=lambda options: False,
    output=_output,
    parameters=_parameters,
    costs=_costs,
    rules=_rules,
    build="tfkit.builtin.node.build_inputs:convolutions",
    source="tfkit.builtin.node:convolutions.py.jinja",
)
