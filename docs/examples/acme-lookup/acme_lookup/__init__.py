"""The declaration of the node kind `acme.lookup`: its edges, weights, costs and attention site. This file imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from tfkit.plugin import NodeKind, Options, Size, component_default, hookimpl, linear
from tfkit.plugin.model_parts import (
    AttentionSite,
    Cost,
    NodeContext,
    NodeRef,
    ParameterGroup,
    Sizes,
    SlotListField,
)

ROLES = {"query": "query", "key": "key", "value": "value", "output": "attention_output"}


class LookupOptions(Options):
    """Options of `acme.lookup`."""

    input: Annotated[str, NodeRef("input"), Field(description="the sequence that asks")]
    memory: Annotated[str, NodeRef("memory"), Field(description="the sequence that answers")]
    num_heads: Annotated[Size, Field(description="heads of the attention; a divisor of d_model")]
    backend: Annotated[Any, SlotListField("backend"), Field(description="attention backend")] = component_default("auto")


def widths(context: NodeContext) -> dict[str, int]:
    """The width that each projection reads."""
    own, memory = context.signals["input"].width, context.signals["memory"].width
    return {"query": own, "key": memory, "value": memory, "output": own}


def parameters(options: LookupOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    M, read = context.signals["input"].width, widths(context)
    found = [parameter for part, role in ROLES.items() for parameter in linear(part, role, read[part], M)]
    return (ParameterGroup(tuple(parameter.under("lookup") for parameter in found)),)


def costs(options: LookupOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    M, read, size = context.signals["input"].width, widths(context), sizes[options.memory]
    B, Q, K = size.batch, size.queries, size.keys
    projections = 2 * B * M * (Q * (read["query"] + read["output"]) + K * (read["key"] + read["value"]))
    kept = B * (3 * Q * M + K * read["key"] + 2 * K * M)
    attention = Cost("attention", 4 * B * Q * K * M, 2 * B * options.num_heads * Q * K)
    return (Cost("projections", projections, kept), attention)


def sites(options: LookupOptions, context: NodeContext) -> Iterator[tuple[str, AttentionSite]]:
    heads, memory = options.num_heads, context.signals["memory"]
    terms = frozenset({"key_visible"} if memory.padded else ())
    yield "0.lookup", AttentionSite(heads, heads, context.signals["input"].width // heads, True, terms, options.backend)


@hookimpl
def tfkit_node_kinds() -> list[NodeKind]:
    return [
        NodeKind(
            name="acme.lookup",
            summary="x + attention(x, memory), between two sequences of any nodes",
            reference="https://arxiv.org/abs/1706.03762",
            contract=1,
            options=LookupOptions,
            inherits=frozenset(),
            output=lambda options, context: context.signals["input"],
            parameters=parameters,
            costs=costs,
            sites=sites,
            build="acme_lookup.lookup:build",
            formula="acme_lookup.formula:lookup",
        )
    ]
