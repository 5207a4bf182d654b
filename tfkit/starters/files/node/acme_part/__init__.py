"""The declaration of the node kind `acme.part`: its edges, weights and costs. This file imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from tfkit.plugin import NodeKind, Options, hookimpl, linear
from tfkit.plugin.model_parts import Cost, NodeContext, NodeRef, ParameterGroup, Signal, Sizes


class GateOptions(Options):
    """Options of `acme.part`."""

    input: Annotated[str, NodeRef("input"), Field(description="the node that it reads")]


def output(options: GateOptions, context: NodeContext) -> Signal:
    signal = context.signals["input"]
    return signal.wide(signal.width)


def parameters(options: GateOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    M = context.signals["input"].width
    return (ParameterGroup(linear("gate", "dense", M, M)),)


def costs(options: GateOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    signal = context.signals["input"]
    M, tokens = signal.width, sizes[""].batch * (sizes[""].queries if signal.length else 1)
    return (Cost("gate", 2 * tokens * M * M, tokens * 3 * M),)


@hookimpl
def tfkit_node_kinds() -> list[NodeKind]:
    return [
        NodeKind(
            name="acme.part",
            summary="a learned gate for every feature: x sigmoid(W x + b)",
            reference="https://arxiv.org/abs/1612.08083",
            contract=1,
            options=GateOptions,
            inherits=frozenset(),
            output=output,
            parameters=parameters,
            costs=costs,
            build="acme_part.gate:build",
            formula="acme_part.formula:gate",
        )
    ]
