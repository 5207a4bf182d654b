"""Node kind: a node of the model graph (tokens, stack, dense, token_logits, ...), with its edges and its output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .cost import Cost, Kept, Numbers, Sizes
from .options import Entry
from .parameter import ParameterGroup
from .placement import PlacementContext
from .sublayer import AttentionSite


@dataclass(frozen=True)
class Signal:
    """The symbolic shape of an output.

    Args:
        axes: names for sizes of the batch (`B`, `L_source`), whole numbers for fixed sizes.
        length: the axis name of the sequence, or its fixed number of positions; None after pooling.
        depth: the number of layers of the stack that it comes from, for readers of the port `layers`.
        layers: the signal of the port `layers`, if it differs.
        tokens: the tokens node that it starts from.
        padded: whether that node marks padding by an id.
        stride: positions of the input per position of the sequence.
    """

    axes: tuple[str | int, ...]
    length: str | int | None = None
    depth: int = 0
    layers: Signal | None = None
    tokens: str | None = None
    padded: bool = False
    stride: int = 1

    @property
    def has_width(self) -> bool:
        """Whether the last axis holds features; False for the similarities of two batches."""
        return isinstance(self.axes[-1], int)

    @property
    def width(self) -> int:
        """The number of features; 0 where the last axis holds none."""
        width = self.axes[-1]
        return width if isinstance(width, int) else 0

    def wide(self, width: int) -> Signal:
        """The same signal with another width.

        Args:
            width: the new width.

        Returns:
            The signal of a single output, without `depth` and `layers`.
        """
        return replace(self, axes=(*self.axes[:-1], width), depth=0, layers=None)

    def strided(self, stride: int, width: int) -> Signal:
        """The signal of every `stride`-th position.

        Args:
            stride: positions from one to the next.
            width: the new width.

        Returns:
            The signal, with ceil(length / stride) positions.
        """
        if isinstance(self.length, int):
            length = -(-self.length // stride)
            return replace(self, axes=("B", length, width), length=length, depth=0, layers=None)
        whole = self.stride * stride
        axis = f"{self.length}/{whole}" if whole > 1 else f"{self.length}"
        return replace(self, axes=("B", axis, width), stride=whole, depth=0, layers=None)


@dataclass(frozen=True)
class NodeContext:
    """The context of a node in the graph.

    Args:
        signals: the signals on its edges, by field (`input`, `memory`, ...).
        memories: the signals of the memories of its sub-layers, by reference.
        targets: the options of the nodes that it refers to, by field; for `share`, of the owner of the table.
        stack: the role and depth of a stack; None for other nodes.
    """

    name: str
    signals: Mapping[str, Signal] = field(default_factory=dict)
    memories: Mapping[str, Signal] = field(default_factory=dict)
    targets: Mapping[str, Any] = field(default_factory=dict)
    stack: PlacementContext | None = None


@dataclass(frozen=True)
class InputRule:
    """The token ids (B, L) of an input node.

    Args:
        vocab_size: number of ids.
        pad_id: the id of padding, or None.
        start_id: the id that starts a decoded sequence, or None.
        end_id: the id that ends a decoded sequence, or None.
        segments: number of segments; 0 for no segment embedding.
        counts_padding: padding shifts the positions of the tokens after it.
    """

    vocab_size: int
    pad_id: int | None
    start_id: int | None
    end_id: int | None
    segments: int
    counts_padding: bool

    @property
    def marks_padding(self) -> bool:
        """Whether the id `pad_id` is padding wherever it stands. Where it is also `end_id`, as in many published decoders, it
        may end a piece in the middle of a sequence."""
        return self.pad_id is not None and self.pad_id != self.end_id


@dataclass(frozen=True)
class ImageRule:
    """The valid images (B, channels, height, width) of an input node: real numbers.

    Args:
        size: height and width.
        channels: colour channels.
        patch: height and width of a patch.
        any_size: height and width may be any multiples of `patch` instead.
    """

    size: int
    channels: int
    patch: int
    any_size: bool


@dataclass(frozen=True)
class FeatureRule:
    """The valid frames (B, L, size) of an input node: real numbers.

    Args:
        size: features of a frame.
    """

    size: int


AnyInputRule = InputRule | ImageRule | FeatureRule
"""What an input node accepts: token ids, images or frames of features."""

Rule = tuple[str, str, str]
"""A broken rule: (path below the node, the rule with its numbers, the fix)."""


@dataclass(frozen=True, kw_only=True)
class NodeKind(Entry):
    """A kind of node, as a plugin registers it. Fields of `options` with a `NodeRef` annotation are its edges.

    Args:
        inherits: the fields that `defaults` reach.
        ports: further outputs, which other nodes read as `node.port`.
        output: `output(options, context)` gives the signal. It is called even if a rule is broken, to find all errors.
        parameters: `parameters(options, context)` gives the groups of parameters.
        costs: `costs(options, context, sizes)`; `sizes` are by memory reference, "" for the node itself.
        kept: `kept(options, context, sizes, numbers)`, the bytes that training keeps for the backward pass, for
            `tfkit plan --gpus`; None: estimated by the elements of its costs.
        sites: the attention sites, named below the node, lazily.
        rules: every broken rule between fields.
        formula: `"module:function"`, the plain equation that it is checked against, called as
            `formula(options, context, weights, inputs)`, which gives a tensor; `inputs` are by field and have `tensor` and
            `shown()`, (B,L) bool.
        input_rule: `input_rule(options, context)` describes a model input: its ids, images or features; None: the kind is not
            an input.
        takes_layers: whether it reads the port `layers`.
        stepwise: `stepwise(options)`: no output depends on later positions, so that it can be decoded step by step.
        mixes_positions: whether an output depends on other positions of the sequence than its own.
        attends_only: `attends_only(options, context)`: an output depends on other positions through attention sites alone, so
            that a row may hold several documents.
        build: `"module:function"`, called as `build(options, context, keep_layers)`; `keep_layers`: a node
            reads the port `layers`, or the model returns it. It returns an `nn.Module` with
            `forward(context: ForwardContext, **inputs: NodeOutput) -> NodeOutput` (see `tfkit.plugin.model_parts`).
    """

    inherits: frozenset[str]
    output: Callable[[Any, NodeContext], Signal]
    build: str
    ports: tuple[str, ...] = ()
    input_rule: Callable[[Any, NodeContext], AnyInputRule] | None = None
    takes_layers: bool = False
    stepwise: Callable[[Any], bool] = lambda options: True
    mixes_positions: bool = False
    attends_only: Callable[[Any, NodeContext], bool] = lambda options, context: False
    parameters: Callable[[Any, NodeContext], tuple[ParameterGroup, ...]] = lambda options, context: ()
    costs: Callable[[Any, NodeContext, Mapping[str, Sizes]], tuple[Cost, ...]] = lambda options, context, sizes: ()
    kept: Callable[[Any, NodeContext, Mapping[str, Sizes], Numbers], Kept] | None = None
    sites: Callable[[Any, NodeContext], Iterator[tuple[str, AttentionSite]]] = lambda options, context: iter(())
    rules: Callable[[Any, NodeContext], tuple[Rule, ...]] = lambda options, context: ()
    formula: str = ""
