"""Node kind: a node of the model graph (tokens, stack, dense, token_logits, ...), with its edges and its output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .cost import Cost, Sizes
from .options import Entry
from .parameter import ParameterGroup
from .placement import StackFacts
from .sublayer import AttentionSite


@dataclass(frozen=True)
class Signal:
    """What flows along an edge, without numbers: `axes` are names for sizes of a batch (`B`, `L_source`) and whole numbers
    for fixed ones. `length` is the axis name of a sequence, None once it is pooled; `depth` is the number of layers of the
    stack it came from (so that a mix can read them); `tokens` names the tokens node at its start, and `padded` says that this
    node tells padding from its ids."""

    axes: tuple[str | int, ...]
    length: str | None = None
    depth: int = 0
    tokens: str | None = None
    padded: bool = False

    @property
    def width(self) -> int:
        width = self.axes[-1]
        assert isinstance(width, int)
        return width

    def wide(self, width: int) -> Signal:
        """The same sequence with another width."""
        return replace(self, axes=(*self.axes[:-1], width), depth=0)


@dataclass(frozen=True)
class NodeContext:
    """What surrounds a node: the signals on its edges by field (`input`, `memory`, ...), those of `memories` that sub-layers
    name, by reference; the options of the nodes it refers to, by field (for `share`: those of the node that holds the table);
    and for a stack its part in the model."""

    name: str
    signals: Mapping[str, Signal] = field(default_factory=dict)
    memories: Mapping[str, Signal] = field(default_factory=dict)
    targets: Mapping[str, Any] = field(default_factory=dict)
    stack: StackFacts | None = None


@dataclass(frozen=True)
class InputRule:
    """What the ids of an input node must be, and what they tell; `counts_padding` says that padding shifts the positions of
    the tokens after it."""

    vocab_size: int
    pad_id: int | None
    start_id: int | None
    end_id: int | None
    segments: int
    counts_padding: bool


Rule = tuple[str, str, str]
"""A broken rule: (path below the node, the rule with its numbers, the fix)."""


@dataclass(frozen=True, kw_only=True)
class NodeKind(Entry):
    """A kind of node. Fields of `options` annotated with `NodeRef` are the node's edges.

    `inherits` lists the fields that `defaults` reach, `ports` the further outputs that another node may read as `node.port`.
    `output(options, context)` is its signal; it is called also where a rule is broken, so that all errors are found at once.
    `parameters`, `costs(options, context, sizes)` (sizes by memory reference, "" for the node's own) and `sites` (names below
    the node, lazily) describe it. `rules` returns every broken cross-field rule. `input_rule(options, context)` says what the
    ids of a model input are; None: the kind is no input. `takes_layers` marks a reader of the port `layers`.
    `stepwise(options)`: the output at one position needs no later position, so that it can be decoded step by step.

    `build`, a `"module:function"`, is called as `build(options, context, keep_layers)`, where `keep_layers` says whether a node
    reads the port `layers`. It returns an `nn.Module` with `forward(context: ForwardContext, **inputs: NodeOutput) ->
    NodeOutput` (see `tfkit.plugin.model_parts`)."""

    inherits: frozenset[str]
    output: Callable[[Any, NodeContext], Signal]
    build: str
    ports: tuple[str, ...] = ()
    input_rule: Callable[[Any, NodeContext], InputRule] | None = None
    takes_layers: bool = False
    stepwise: Callable[[Any], bool] = lambda options: True
    parameters: Callable[[Any, NodeContext], tuple[ParameterGroup, ...]] = lambda options, context: ()
    costs: Callable[[Any, NodeContext, Mapping[str, Sizes]], tuple[Cost, ...]] = lambda options, context, sizes: ()
    sites: Callable[[Any, NodeContext], Iterator[tuple[str, AttentionSite]]] = lambda options, context: iter(())
    rules: Callable[[Any, NodeContext], tuple[Rule, ...]] = lambda options, context: ()
