"""The node kind `span_logits`, without torch: where a span starts and where it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from ...plugin import NodeKind, OneOf, Options, component_default, linear
from ...slots.cost import Cost, Sizes
from ...slots.node import NodeContext, Rule
from ...slots.options import NodeRef
from ...slots.parameter import ParameterGroup
from .options import Init, Input, TokensOptions


class SpanLogitsOptions(Options):
    """Start and end logits of every position; padding cannot be chosen."""

    input: Input
    choose: Annotated[
        str, OneOf("all", "second_text"), Field(description="where a span may be; `second_text`: there, or at the first token")
    ] = "all"
    tokens: Annotated[
        str | None, NodeRef("tokens"), Field(description="the tokens node whose first end token ends the first text")
    ] = None
    bias: bool = True
    init: Init = component_default("xavier")


def _parameters(options: SpanLogitsOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    return (ParameterGroup(linear("linear", "classify", context.signals["input"].width, 2, options.bias)),)


def _costs(options: SpanLogitsOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    width, positions = context.signals["input"].width, sizes[""].batch * sizes[""].queries
    return (Cost("span_logits", 4 * positions * width, positions * (width + 2)),)


def _rules(options: SpanLogitsOptions, context: NodeContext) -> tuple[Rule, ...]:
    signal, tokens = context.signals["input"], context.targets.get("tokens")
    if signal.length is None:
        return (("input", f"`{options.input}` is one vector, {signal.axes}", "read a sequence"),)
    if options.choose == "all":
        return (("tokens", "`choose: all` reads no token ids", "remove `tokens`"),) if options.tokens else ()
    if not isinstance(tokens, TokensOptions):
        return (("tokens", "`choose: second_text` needs the tokens node with both texts", "write `tokens: NODE`"),)
    if tokens.end_id is None:
        return (("tokens", f"`{options.tokens}` has no end_id", "write `end_id` there"),)
    return ()


SPAN_LOGITS = NodeKind(
    name="span_logits",
    summary="scores over positions, of the start and of the end of a span",
    reference="https://aclanthology.org/N19-1423/",
    options=SpanLogitsOptions,
    inherits=frozenset({"init"}),
    stepwise=lambda options: False,
    output=lambda options, context: context.signals["input"].wide(2),
    parameters=_parameters,
    costs=_costs,
    rules=_rules,
    build="tfkit.builtin.node.build:span_logits",
)
