"""The node kinds of images and frames, without torch: `patches`, `features`, `convolutions` and `similarity`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ...plugin import Component, NodeKind, Options, Parameter, Probability, Size, SlotField, component_default
from ...slots.cost import Cost, Sizes
from ...slots.node import FeatureRule, ImageRule, NodeContext, Rule, Signal
from ...slots.options import AsTuple, NodeRef
from ...slots.parameter import ParameterGroup
from ...slots.position import PositionSite
from .options import Init, Input, Norm, Position


class PatchesOptions(Options):
    """Images to a sequence of patches; an input of the model."""

    size: Annotated[Size, Field(description="height and width of an image; number of features of a frame")]
    patch: Annotated[Size, Field(description="height and width of a patch")]
    channels: Annotated[Size, Field(description="values of a pixel: 3 for colours, 1 for grey")] = 3
    d_model: Annotated[Size, Field(description="width of the vectors")]
    bias: bool = True
    class_token: Annotated[bool, Field(description="a learned vector before the patches")] = False
    distillation_token: Annotated[bool, Field(description="a second learned vector, after the class token (DeiT)")] = False
    registers: Annotated[int, Field(ge=0, le=4096, description="learned vectors without a position before the patches")] = 0
    position: Annotated[Position, Field(description="position scheme that acts on embeddings")] = component_default("none")
    any_size: Annotated[
        bool, Field(description="accept images of other sizes too, and interpolate learned positions to them (bicubic)")
    ] = False
    embedding_norm: Annotated[Norm, Field(description="norm after the sum of the embeddings")] = component_default("none")
    dropout: Annotated[Probability, Field(description="dropout of the embeddings")] = 0.0
    init: Init = component_default("xavier")

    @property
    def prefix(self) -> int:
        """The number of learned vectors with a position."""
        return self.class_token + self.distillation_token

    @property
    def site(self) -> PositionSite:
        """Where the position scheme acts: the class token, the distillation token and the patches."""
        side, prefix = self.size // self.patch, self.prefix
        return PositionSite(self.d_model, rows=side * side + prefix, grid=(side, side), prefix=prefix)

    @property
    def positions(self) -> int:
        """The length of the sequence."""
        return (self.size // self.patch) ** 2 + self.prefix + self.registers


def patches_width(options: PatchesOptions) -> int:
    """The width of the output: d_model, and the features of a position that are appended."""
    return options.d_model + options.position.entry.widens(options.position.options, options.site)  # type: ignore[no-any-return]


def _patches_output(options: PatchesOptions, context: NodeContext) -> Signal:
    return Signal(("B", options.positions, patches_width(options)), options.positions)


def _input(options: PatchesOptions, context: NodeContext) -> ImageRule:
    return ImageRule(options.size, options.channels, options.patch, options.any_size)


def _patches_parameters(options: PatchesOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    width, window = options.d_model, (options.patch, options.patch)
    parameters = [Parameter("projection.weight", "patches", (width, options.channels, *window))]
    if options.bias:
        parameters.append(Parameter("projection.bias", "bias", (width,)))
    if options.class_token:
        parameters.append(Parameter("class_token", "class_token", (width,)))
    if options.distillation_token:
        parameters.append(Parameter("distillation_token", "class_token", (width,)))
    if options.registers:
        parameters.append(Parameter("registers", "registers", (options.registers, patches_width(options))))
    position, norm = options.position, options.embedding_norm
    parameters += [p.under("position") for p in position.entry.parameters(position.options, options.site)]
    parameters += [p.under("embedding_norm") for p in norm.entry.parameters(norm.options, patches_width(options))]
    return (ParameterGroup(tuple(parameters)),)


def _patches_costs(options: PatchesOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    input_sizes, width = sizes[""], options.d_model
    numbers = options.channels * options.size**2
    position = options.position
    rows = options.positions - options.registers
    flops = position.entry.flops(position.options, options.site, input_sizes.batch, rows, rows)
    patches = Cost("patches", 2 * input_sizes.batch * numbers * width, input_sizes.batch * numbers)
    return (patches, Cost("embedding", flops, input_sizes.batch * options.positions * patches_width(options)))


def _patches_rules(options: PatchesOptions, context: NodeContext) -> tuple[Rule, ...]:
    broken: list[Rule] = []
    if options.size % options.patch:
        rule = f"size {options.size} is no multiple of patch {options.patch}"
        near = options.size // options.patch * options.patch
        broken.append(("patch", rule, f"write a divisor of {options.size}, or `size: {near or options.patch}`"))
        return tuple(broken)
    if options.distillation_token and not options.class_token:
        broken.append(("distillation_token", "it stands after a class token, and there is none", "write `class_token: true`"))
    broken += position_rules(options.position, options.site)
    return tuple(broken)


def position_rules(position: Position, site: PositionSite) -> list[Rule]:
    """Why a position scheme cannot act on embeddings there."""
    if position.entry.acts and "embeddings" not in position.entry.acts:
        rule = f"{position.kind} acts inside attention, not on embeddings"
        return [("position", rule, "write it at the stack, or in `defaults`")]
    reasons = position.entry.unsupported(position.options, site)
    return [("position", f"{position.kind}: {reason}", "correct the option, or choose another scheme") for reason in reasons]


PATCHES = NodeKind(
    name="patches",
    summary="images to a sequence of patches; an input of the model",
    reference="https://arxiv.org/abs/2010.11929",
    options=PatchesOptions,
    inherits=frozenset({"d_model", "position", "dropout", "init"}),
    input_rule=_input,
    output=_patches_output,
    parameters=_patches_parameters,
    costs=_patches_costs,
    rules=_patches_rules,
    build="tfkit.builtin.node.node_builders:patches",
    source="tfkit.builtin.node:patches.py.jinja",
)


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
        return prod(convolution.stride for convolution in self.convolutions)

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
    for convolution in options.convolutions:
        yield convolution, width
        width = convolution.d_model


def _convolutions_output(options: ConvolutionsOptions, context: NodeContext) -> Signal:
    site = site_of(options, context)
    width = options.d_model + options.position.entry.widens(options.position.options, site)
    return context.signals["input"].strided(options.stride, width)


def _convolutions_parameters(options: ConvolutionsOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    parameters: list[Parameter] = []
    for at, (convolution, width) in enumerate(widths(options, context)):
        parameters.append(
            Parameter(f"convolutions.{at}.weight", "convolution", (convolution.d_model, width, convolution.width))
        )
        if convolution.bias:
            parameters.append(Parameter(f"convolutions.{at}.bias", "bias", (convolution.d_model,)))
    position = options.position
    site = site_of(options, context)
    parameters += [p.under("position") for p in position.entry.parameters(position.options, site)]
    return (ParameterGroup(tuple(parameters)),)


def _convolutions_costs(options: ConvolutionsOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    B, length = sizes[""].batch, sizes[""].queries
    flops = elements = 0
    for convolution, width in widths(options, context):
        kept = (length + convolution.width - 1) * width
        length = -(-length // convolution.stride)
        flops += 2 * B * length * convolution.width * width * convolution.d_model
        elements += B * (kept + length * convolution.d_model * (1 if convolution.activation.kind == "identity" else 2))
    position = options.position
    positions = position.entry.flops(position.options, site_of(options, context), B, length, length)
    return (
        Cost("convolutions", flops, elements),
        Cost("embedding", positions, B * length * _convolutions_output(options, context).width),
    )


def _convolutions_rules(options: ConvolutionsOptions, context: NodeContext) -> tuple[Rule, ...]:
    signal = context.signals["input"]
    if signal.length is None:
        return (("input", f"`{options.input}` is one vector per row, {signal.axes}", "read a sequence"),)
    broken = [
        (
            f"convolutions.{at}.activation",
            f"{convolution.activation.kind} is gated, and a convolution has one output",
            "choose another",
        )
        for at, convolution in enumerate(options.convolutions)
        if convolution.activation.entry.gated
    ]
    return (*broken, *position_rules(options.position, site_of(options, context)))


FEATURES = NodeKind(
    name="features",
    summary="frames of real numbers (a log-mel spectrogram); an input of the model",
    options=FeaturesOptions,
    inherits=frozenset(),
    input_rule=lambda options, context: FeatureRule(options.size),
    output=lambda options, context: Signal(("B", f"L_{context.name}", options.size), f"L_{context.name}"),
    build="tfkit.builtin.node.node_builders:features",
    source="tfkit.builtin.node:features.py.jinja",
)
CONVOLUTIONS = NodeKind(
    name="convolutions",
    summary="convolutions over a sequence, which may shorten it",
    reference="https://arxiv.org/abs/2212.04356",
    options=ConvolutionsOptions,
    inherits=frozenset({"position", "dropout", "init"}),
    stepwise=lambda options: False,
    output=_convolutions_output,
    parameters=_convolutions_parameters,
    costs=_convolutions_costs,
    rules=_convolutions_rules,
    build="tfkit.builtin.node.node_builders:convolutions",
    source="tfkit.builtin.node:convolutions.py.jinja",
)


def _two(value: Any) -> Any:
    if isinstance(value, list) and len(value) != 2:
        raise ValueError(f"a list of two nodes is expected, {len(value)} are written")
    return tuple(value) if isinstance(value, list) else value


class SimilarityOptions(Options):
    """The similarity of every vector of one node to every vector of another, in one batch."""

    inputs: Annotated[
        tuple[str, ...], BeforeValidator(_two), NodeRef("input"), Field(description="the two nodes whose vectors are compared")
    ]


def _similarity_rules(options: SimilarityOptions, context: NodeContext) -> tuple[Rule, ...]:
    a, b = (context.signals[f"inputs.{at}"] for at in range(2))
    for at, signal in enumerate((a, b)):
        if signal.length is not None:
            axes = ", ".join(map(str, signal.axes))
            return ((f"inputs.{at}", f"`{options.inputs[at]}` is a sequence, ({axes})", "put a pool node in between"),)
    if a.width != b.width:
        rule = f"`{options.inputs[0]}` is {a.width} wide, `{options.inputs[1]}` {b.width}"
        return (("inputs", rule, "put a dense node in between"),)
    return ()


def _similarity_costs(options: SimilarityOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    B, width = sizes[""].batch, context.signals["inputs.0"].width
    return (Cost("similarity", 2 * B * B * width, 4 * B * width + 2 * B * B),)


SIMILARITY = NodeKind(
    name="similarity",
    summary="the scaled cosines of two batches of vectors",
    reference="https://arxiv.org/abs/2103.00020",
    options=SimilarityOptions,
    inherits=frozenset(),
    stepwise=lambda options: False,
    output=lambda options, context: Signal(("B", "B")),
    parameters=lambda options, context: (ParameterGroup((Parameter("scale", "logit_scale", (1,)),)),),
    costs=_similarity_costs,
    rules=_similarity_rules,
    build="tfkit.builtin.node.node_builders:similarity",
    source="tfkit.builtin.node:similarity.py.jinja",
)
