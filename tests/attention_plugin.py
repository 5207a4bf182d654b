"""A plugin whose sub-layer kind and node kind each own multi-head attention. It imports what any plugin may import."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from tfkit.plugin import (
    Component,
    NodeKind,
    Options,
    Parameter,
    Size,
    SublayerKind,
    SublayerOptions,
    component_default,
    hookimpl,
    linear,
)
from tfkit.plugin.model_parts import (
    AttentionConfig,
    AttentionSite,
    ForwardContext,
    MultiHeadAttention,
    NodeContext,
    NodeOutput,
    NodeRef,
    ParameterGroup,
    Signal,
    SlotListField,
    StackContext,
    SublayerContext,
    Wiring,
)

Backend = Annotated[Any, SlotListField("backend")]


class GatedOptions(SublayerOptions):
    num_heads: Size
    backend: Backend = component_default("auto")


class ReaderOptions(Options):
    input: Annotated[str, NodeRef("input")]
    memory: Annotated[str, NodeRef("memory")]
    num_heads: Size
    backend: Backend = component_default("auto")


def attention_parameters(name: str, width: int) -> tuple[Parameter, ...]:
    roles = ("query", "key", "value", "attention_output")
    maps = zip(("query", "key", "value", "output"), roles, strict=True)
    return tuple(parameter.under(name) for part, role in maps for parameter in linear(part, role, width, width))


def attention_site(width: int, heads: int, backend: tuple[Component, ...], cross: bool) -> AttentionSite:
    terms = {"key_visible"} if cross else {"key_visible", "causal"}
    return AttentionSite(heads, heads, width // heads, cross, frozenset(terms), backend)


def attention(name: str, width: int, heads: int, cross: bool = False) -> MultiHeadAttention:
    dim = width // heads
    projections = {part: nn.Linear(width, width) for part in ("query", "key", "value", "output")}
    return MultiHeadAttention(name, projections, AttentionConfig(heads, heads, dim, dim**-0.5, cross=cross))


class GatedAttention(nn.Module):
    """sigmoid(x W^G + b) * attention(x), (B, L, M) -> (B, L, M)."""

    def __init__(self, attention: MultiHeadAttention, gate: nn.Linear) -> None:
        super().__init__()
        self.attention, self.gate = attention, gate

    def forward(self, x: Tensor, context: StackContext, index: int) -> Tensor:
        return torch.sigmoid(self.gate(x)) * self.attention(x, context, index)  # type: ignore[no-any-return]


def build_gated(options: GatedOptions, context: SublayerContext, wiring: Wiring) -> nn.Module:
    width = context.width
    return GatedAttention(attention(wiring.name, width, options.num_heads), nn.Linear(width, width))


class Reader(nn.Module):
    """y = x + self-attention(x), then y + cross-attention(y, memory); (B, L, M) -> (B, L, M)."""

    memory_only_attended = True

    def __init__(self, name: str, width: int, heads: int) -> None:
        super().__init__()
        self.name = name
        self.history, self.lookup = attention("history", width, heads), attention("lookup", width, heads, cross=True)

    def attention_sites(self) -> list[tuple[int, MultiHeadAttention]]:
        return [(0, self.history), (0, self.lookup)]

    def forward(self, context: ForwardContext, input: NodeOutput, memory: NodeOutput) -> NodeOutput:
        call = context.stack_context(self.name, input, causal=True, memory=memory)
        x = input.tensor + self.history(input.tensor, call, 0)
        return replace(input, tensor=x + self.lookup(x, call, 0))


class SilentReader(Reader):
    """A reader that does not return its attention sites."""

    def attention_sites(self) -> list[tuple[int, MultiHeadAttention]]:
        return [(0, self.history)]


def build_reader(options: ReaderOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return Reader(context.name, context.signals["input"].width, options.num_heads)


def build_silent(options: ReaderOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return SilentReader(context.name, context.signals["input"].width, options.num_heads)


def reader_output(options: ReaderOptions, context: NodeContext) -> Signal:
    return context.signals["input"]


def reader_parameters(options: ReaderOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    width = context.signals["input"].width
    return (ParameterGroup((*attention_parameters("history", width), *attention_parameters("lookup", width))),)


def reader_sites(options: ReaderOptions, context: NodeContext) -> Any:
    width = context.signals["input"].width
    yield "0.history", attention_site(width, options.num_heads, options.backend, cross=False)
    yield "0.lookup", attention_site(width, options.num_heads, options.backend, cross=True)


READER = NodeKind(
    name="acme.reader", summary="one self-attention and one cross-attention", options=ReaderOptions,
    inherits=frozenset(), stepwise=lambda options: True, output=reader_output, parameters=reader_parameters,
    sites=reader_sites, build="attention_plugin:build_reader",
)  # fmt: skip
GATED = SublayerKind(
    name="acme.gated", summary="self-attention with a gate", options=GatedOptions, option_keys=("acme_gated",), reads="self",
    parameters=lambda options, context: (
        *attention_parameters("attention", context.width), *linear("gate", "gate", context.width, context.width)
    ),
    site=lambda options, context: attention_site(context.width, options.num_heads, options.backend, cross=False),
    build="attention_plugin:build_gated",
)  # fmt: skip


@hookimpl
def tfkit_node_kinds() -> list[NodeKind]:
    return [READER, replace(READER, name="acme.silent", build="attention_plugin:build_silent")]


@hookimpl
def tfkit_sublayer_kinds() -> list[SublayerKind]:
    return [GATED]
