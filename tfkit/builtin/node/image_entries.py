"""The node kind `patches`, without torch: images to sequences of patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from ...plugin import NodeKind, Options, Parameter, Probability, Size, component_default
from ...slots.cost import Cost, Sizes
from ...slots.node import ImageRule, NodeContext, Rule, Signal
from ...slots.parameter import ParameterGroup
from ...slots.position import PositionSite
from .options import Init, Norm, Position


class PatchesOptions(Options):
    """Images to a sequence of patches; an input of the model."""

    size: Annotated[Size, Field(description="height and width of an image; number of features of a frame")]
    patch: Annotated[Size, Field(description="height and width of a patch")]
    channels: Annotated[Size, Field(description="values of a pixel: 3 for colours, 1 for grey")] = 3
    d_model: Annotated[Size, Field(description="width of the vectors")]
    bias: bool = True
    class_token: Annotated[bool, Field(description="a learned vector before the patches")] = False
    distillation_token: Annotated[bool, Field(description="a second learned vector, after the class token (DeiT)")] = False
    registers: Annotated[int, Field(ge=0, le=2**20, description="learned vectors without a position before the patches")] = 0
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


def _output(options: PatchesOptions, context: NodeContext) -> Signal:
    return Signal(("B", options.positions, patches_width(options)), options.positions)


def _input(options: PatchesOptions, context: NodeContext) -> ImageRule:
    return ImageRule(options.size, options.channels, options.patch, options.any_size)


def _parameters(options: PatchesOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
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


def _costs(options: PatchesOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    own, width = sizes[""], options.d_model
    numbers = options.channels * options.size**2
    position = options.position
    rows = options.positions - options.registers
    flops = position.entry.flops(position.options, options.site, own.batch, rows, rows)
    made = Cost("patches", 2 * own.batch * numbers * width, own.batch * numbers)
    return (made, Cost("embedding", flops, own.batch * options.positions * patches_width(options)))


def _rules(options: PatchesOptions, context: NodeContext) -> tuple[Rule, ...]:
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
    output=_output,
    parameters=_parameters,
    costs=_costs,
    rules=_rules,
    build="tfkit.builtin.node.build_inputs:patches",
    source="tfkit.builtin.node:patches.py.jinja",
)
