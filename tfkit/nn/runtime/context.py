"""One forward pass of a stack: what all its layers share, made once and remembered.

Masks, position tables, biases and what a backend prepares from them depend on the batch, not on the layer: each is made when
the first layer asks and handed to the others.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...attention.choice import BoundBackend
from ...attention.positions import PositionRange
from ...attention.types import Bias, Mask, Prepared, Shapes
from ..cpu.prepacked import PrepackedWeights
from .beam_tree import BeamTree
from .decoding_state import DecodingState
from .node_output import NodeOutput, Padding


@dataclass
class ForwardContext:
    """One call of a model: its inputs, the decoding state if any, the sites whose attention weights are wanted, and, where it
    is a part of decoding, the encoder's included, the packed weights of that."""

    ids: dict[str, Tensor]
    padding: dict[str, Padding]
    segments: dict[str, Tensor]
    state: DecodingState | None = None
    wanted: frozenset[str] = frozenset()
    weights: dict[str, Tensor] = field(default_factory=dict)
    prepacked: PrepackedWeights | None = None


@dataclass
class StackContext:
    """One call of a stack: `stack` its name, `causal`, the padding and number of its `queries`, the memories it reads, the
    position `offset` of its first query (0, or the length decoded so far)."""

    model: ForwardContext
    stack: str
    causal: bool
    padding: Padding
    queries: int
    offset: int
    memory: NodeOutput | None
    memories: dict[str, NodeOutput]
    schemes: tuple[Any, ...]
    memo: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def state(self) -> DecodingState | None:
        """The decoding state, where this stack takes part in incremental decoding."""
        return self.model.state if self.causal else None

    @property
    def tree(self) -> BeamTree | None:
        """The hypotheses of a beam search that share their beginnings, where there are such."""
        state = self.state
        return None if state is None else state.tree

    def memory_for(self, name: str | None) -> NodeOutput:
        """The memory that a sub-layer reads: the one it names, or the stack's."""
        found = self.memories[name] if name else self.memory
        assert found is not None, "the graph's rules give every cross-attention a memory"
        return found

    def self_mask(self, window: tuple[int | None, int | None] | None) -> Mask:
        """The mask of self-attention: causal or not, the window, and padding."""
        made = self.memo.get(("self", window))
        if made is None and self.tree is not None:
            made = self.memo["self", window] = self.tree.mask(window, self.offset)
        if made is None:
            lengths, visible = self.padding.lengths, self.padding.visible
            made = self.memo["self", window] = Mask(
                causal=self.causal,
                window=window,
                offset=self.offset,
                key_lengths=lengths,
                query_lengths=lengths if self.causal else None,
                key_visible=visible,
            )
        return made

    def cross_mask(self, name: str | None) -> Mask:
        """The mask of attention to a memory: its padding."""
        made = self.memo.get(("cross", name))
        if made is None:
            padding = self.memory_for(name).padding
            made = Mask(offset=self.offset, key_lengths=padding.lengths, key_visible=padding.visible)
            self.memo["cross", name] = made
        return made

    def span(self, keys: int, key_start: int, like: Tensor) -> PositionRange:
        """The positions that this call covers, for a position scheme."""
        visible = self.padding.as_visible(self.offset + self.queries)
        return PositionRange(self.queries, keys, self.offset, key_start, like.device, like.dtype, visible)

    def tables(self, scheme: Any, name: Hashable, span: PositionRange) -> Any:
        """What a position scheme computes once for all layers that share it; `name` tells schemes of a stack apart."""
        key = ("tables", name)
        if key not in self.memo:
            self.memo[key] = scheme.prepare(span)
        return self.memo[key]

    def shared_bias(self, scheme: Any, name: Hashable, query: Tensor, tables: Any, scale: float) -> Bias:
        """A bias that does not read the query, made with the first layer's."""
        key = ("bias", name, query.dtype)
        if key not in self.memo:
            self.memo[key] = scheme.bias(query, tables, scale)
        return self.memo[key]  # type: ignore[no-any-return]

    def beam_bias(self, tree: BeamTree, bias: Bias, name: Hashable, shapes: Shapes, cross: bool) -> Bias:
        """A bias of rows as one of hypotheses, made once where all layers share it (`name`)."""
        if name is None:
            return tree.bias(bias, shapes, self.offset, cross)
        key = ("tree bias", name, cross, shapes.dtype)
        if key not in self.memo:
            self.memo[key] = tree.bias(bias, shapes, self.offset, cross)
        return self.memo[key]  # type: ignore[no-any-return]

    def prepared(
        self,
        backend: BoundBackend,
        mask: Mask,
        mask_name: Hashable,
        bias: Bias | None,
        bias_name: Hashable,
        query: Tensor,
        keys: int,
    ) -> Prepared | None:
        """What a backend makes of the mask, once for all layers; with the bias in it where layers share one (`bias_name`)."""
        if backend.prepare is None:
            return None
        key = ("prepared", backend.name, mask_name, bias_name, query.shape[1], query.dtype)
        if key not in self.memo:
            shapes = Shapes(query.shape[0], query.shape[1], query.shape[2], keys, query.dtype, query.device)
            with torch.autocast(query.device.type, enabled=False):
                self.memo[key] = backend.prepare(mask, bias if bias_name is not None else None, shapes, backend.options)
        return self.memo[key]  # type: ignore[no-any-return]
