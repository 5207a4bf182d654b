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
    """The type of a node's output.

    Args:
        axes: names of axes whose size depends on the batch (`B`, `L_source`), and sizes of fixed axes.
        length: name of the axis of a sequence; None after pooling.
        depth: number of layers of the stack it comes from, for a mix of layers.
        tokens: the tokens node that the sequence comes from.
        padded: that node finds padding in its ids.
    """

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
        """This signal with another width."""
        return replace(self, axes=(*self.axes[:-1], width), depth=0)


@dataclass(frozen=True)
class NodeContext:
    """The surroundings of a node.

    Args:
        name: the node's name.
        signals: signals of its edges by field (`input`, `memory`, ...).
        memories: signals of the memories that its sub-layers name, by reference.
        targets: options of the nodes it refers to, by field; for `share`, those of the node with the table.
        stack: for a stack, its role in the model.
    """

    name: str
    signals: Mapping[str, Signal] = field(default_factory=dict)
    memories: Mapping[str, Signal] = field(default_factory=dict)
    targets: Mapping[str, Any] = field(default_factory=dict)
    stack: StackFacts | None = None


@dataclass(frozen=True)
class InputRule:
    """The rules of the ids of an input node.

    Args:
        vocab_size: ids are from 0 to `vocab_size - 1`.
        pad_id: the id of padding, or None.
        start_id: the id that a decoded sequence starts with, or None.
        end_id: the id that a decoded sequence ends with, or None.
        segments: number of segments, 0 for none.
        counts_padding: padding shifts the positions of later tokens.
    """

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
    """A kind of node, as a plugin registers it. Fields of `options` with a `NodeRef` annotation are its edges.

    A node with its own `MultiHeadAttention` declares it in `sites`, and its module implements `AttentionNode`. It then gets
    backends, caches and attention weights like a stack.

    Args:
        inherits: fields that the `defaults` of a spec reach.
        output: `output(options, context)` is the signal of its output. It is also called if a rule is broken.
        build: `"module:function"`, called as `build(options, context, keep_layers)`; `keep_layers` is True if a node reads
            the port `layers`. It returns an `nn.Module` with `forward(context: ForwardContext, **inputs: NodeOutput) ->
            NodeOutput`.
        ports: further outputs, which other nodes read as `node.port`.
        input_rule: `input_rule(options, context)` gives the rules of its ids; None if the kind is not a model input.
        takes_layers: it reads the port `layers`.
        stepwise: `stepwise(options)` is True if the output at a position does not depend on later positions.
        parameters: `parameters(options, context)` lists its weights.
        costs: `costs(options, context, sizes)` lists its costs; `sizes` by memory reference, "" for the node itself.
        sites: `sites(options, context)` yields (name below the node, attention site), for example ("0.self_attention", ...).
        rules: `rules(options, context)` returns every broken rule that concerns several fields.
    """

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
