"""The node kind `similarity`, without torch: the products of two batches of vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ...plugin import NodeKind, Options, Parameter
from ...slots.cost import Cost, Sizes
from ...slots.node import NodeContext, Rule, Signal
from ...slots.options import NodeRef
from ...slots.parameter import ParameterGroup


def _two(value: Any) -> Any:
    if isinstance(value, list) and len(value) != 2:
        raise ValueError(f"a list of two nodes is expected, {len(value)} are written")
    return tuple(value) if isinstance(value, list) else value


class SimilarityOptions(Options):
    """The similarity of every vector of one node to every vector of another, in one batch."""

    inputs: Annotated[
        tuple[str, ...], BeforeValidator(_two), NodeRef("input"), Field(description="the two nodes whose vectors are compared")
    ]


def _rules(options: SimilarityOptions, context: NodeContext) -> tuple[Rule, ...]:
    a, b = (context.signals[f"inputs.{at}"] for at in range(2))
    for at, signal in enumerate((a, b)):
        if signal.length is not None:
            axes = ", ".join(map(str, signal.axes))
            return ((f"inputs.{at}", f"`{options.inputs[at]}` is a sequence, ({axes})", "put a pool node in between"),)
    if a.width != b.width:
        rule = f"`{options.inputs[0]}` is {a.width} wide, `{options.inputs[1]}` {b.width}"
        return (("inputs", rule, "put a dense node in between"),)
    return ()


def _costs(options: SimilarityOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
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
    costs=_costs,
    rules=_rules,
    build="tfkit.builtin.node.build_inputs:similarity",
    source="tfkit.builtin.node:similarity.py.jinja",
)
