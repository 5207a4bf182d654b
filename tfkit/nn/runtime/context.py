"""The state of one forward pass: of the whole model, and of one stack.

Masks, position tables, biases and the prepared masks of backends depend on the batch, not on the layer. `StackContext` computes
each when the first layer needs it, and the other layers reuse it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...attention.choice import BoundBackend
from ...attention.positions import PositionRange
from ...attention.types import Bias, Mask, Prepared, Shapes
from ..cpu.prepacked import PrepackedWeights
from ..cpu.small_batch import project
from .beam_tree import BeamTree
from .decoding_state import DecodingState, KeyValueCache
from .node_output import NodeOutput, Padding


@dataclass
class ForwardContext:
    """One call of a model.

    Args:
        inputs: token ids (B, L), images (B, C, H, W) or features (B, L, F) by input node.
        padding: their padding by input node.
        segments: segment ids (B, L) by input node.
        state: the decoding state, None outside of incremental decoding.
        wanted: sites whose attention weights the caller wants.
        weights: attention weights (B, H, Q, K) of these sites, filled by the sites.
        prepacked: prepacked weights of the search that this call belongs to, None outside of a search.
    """

    inputs: dict[str, Tensor]
    padding: dict[str, Padding]
    segments: dict[str, Tensor]
    state: DecodingState | None = None
    wanted: frozenset[str] = frozenset()
    weights: dict[str, Tensor] = field(default_factory=dict)
    prepacked: PrepackedWeights | None = None

    def project(self, linear: nn.Module, x: Tensor) -> Tensor:
        """`linear(x)` (..., in) -> (..., out) by the fastest kernel; while decoding, with prepacked weights."""
        return project(linear, x, self.prepacked)

    def stack_context(
        self,
        node: str,
        input: NodeOutput,
        causal: bool = False,
        memory: NodeOutput | None = None,
        memories: dict[str, NodeOutput] | None = None,
        schemes: tuple[Any, ...] = (),
    ) -> StackContext:
        """The context of one call of a node that owns attention sites.

        Args:
            node: the node's name.
            input: the node's input, (B, L, M).
            causal: self-attention is causal. Only a causal node caches keys while decoding.
            memory: what cross-attention reads.
            memories: further memories by reference.
            schemes: position schemes whose tables the sites share.
        """
        offset = self.state.length if self.state is not None and causal else 0
        queries = input.tensor.shape[1]
        return StackContext(self, node, causal, input.padding, queries, offset, memory, memories or {}, schemes)


@dataclass
class StackContext:
    """One call of a stack, or of another node that owns attention sites.

    Args:
        model: the call of the model.
        stack: the node's name, the first part of its sites' names.
        causal: self-attention is causal.
        padding: padding of the sequence.
        queries: number of new tokens Q.
        offset: position of the first new token: 0, or the length decoded so far.
        memory: what cross-attention reads unless it names a memory.
        memories: the memories that sub-layers name, by reference.
        schemes: position schemes whose tables the layers share.
        memo: what the layers share, by key.
    """

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
        """The decoding state, if this stack is decoded incrementally."""
        return self.model.state if self.causal else None

    @property
    def tree(self) -> BeamTree | None:
        """The beams that share prefixes, if there are any."""
        state = self.state
        return None if state is None else state.tree

    def memory_for(self, name: str | None) -> NodeOutput:
        """The memory with this name; None for the memory of the stack."""
        found = self.memories[name] if name else self.memory
        assert found is not None, "the graph's rules give every cross-attention a memory"
        return found

    def self_mask(self, window: tuple[int | None, int | None] | None) -> Mask:
        """The mask of self-attention: causality, window and padding."""
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
        """The mask of cross-attention: the padding of the memory."""
        made = self.memo.get(("cross", name))
        if made is None:
            padding = self.memory_for(name).padding
            made = Mask(offset=self.offset, key_lengths=padding.lengths, key_visible=padding.visible)
            self.memo["cross", name] = made
        return made

    def position_range(self, keys: int, key_start: int, like: Tensor) -> PositionRange:
        """The positions of this call. The keys from `key_start` up to `keys` are new; `like` gives device and dtype."""
        visible = self.padding.as_visible(self.offset + self.queries)
        return PositionRange(self.queries, keys, self.offset, key_start, like.device, like.dtype, visible)

    def tables(self, scheme: Any, name: Hashable, positions: PositionRange) -> Any:
        """The tables of a position scheme, shared by all layers that use the scheme called `name`."""
        key = ("tables", name)
        if key not in self.memo:
            self.memo[key] = scheme.prepare(positions)
        return self.memo[key]

    def shared_bias(self, scheme: Any, name: Hashable, query: Tensor, tables: Any, scale: float) -> Bias:
        """A bias that does not depend on the query, computed once for all layers that use the scheme called `name`."""
        key = ("bias", name, query.dtype)
        if key not in self.memo:
            self.memo[key] = scheme.bias(query, tables, scale)
        return self.memo[key]  # type: ignore[no-any-return]

    def cached_memory(self, site: str) -> tuple[Tensor, Tensor] | None:
        """Keys (B, G, K, D) and values (B, G, K, V) of a memory that an earlier decoding step projected."""
        return None if self.state is None else self.state.crossed.get(site)

    def cache_memory(self, site: str, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep keys (B, G, K, D) and values (B, G, K, V) of a memory for later decoding steps; returns both."""
        if self.state is None:
            return key, value
        # Every step reads all of them. That is faster with the tokens of one head next to each other in memory.
        self.state.crossed[site] = key.contiguous(), value.contiguous()
        return self.state.crossed[site]

    def append_to_cache(self, site: str, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys (B, G, N, D) and values (B, G, N, V); returns all so far, (B, G, K, D) and (B, G, K, V).

        Beams that share prefixes append one key each to the row of their sentence. Outside of decoding nothing is kept.
        """
        state = self.state
        if state is None:
            return key, value
        if site not in state.caches:
            state.caches[site] = KeyValueCache(state.capacity)
        start = self.offset
        if state.tree is not None:
            start, key, value = state.tree.slots, state.tree.fold_beams(key), state.tree.fold_beams(value)
        return state.caches[site].write(start, key, value)

    def fold_beams(self, query: Tensor) -> Tensor:
        """(B, H, Q, D) unchanged, or (S * k, H, 1, D) as (S, H, k, D) if k beams of S sentences share prefixes."""
        tree = self.tree
        return query if tree is None else tree.fold_beams(query)

    def unfold_beams(self, output: Tensor) -> Tensor:
        """(B, Q, M) unchanged, or (S, k, M) as (S * k, 1, M) if beams share prefixes."""
        return output if self.tree is None else output.view(-1, 1, output.shape[2])

    def weights_by_row(self, weights: Tensor, cross: bool) -> Tensor:
        """Attention weights (B, H, Q, K), with one row per beam and one key per position even if beams share prefixes."""
        tree = self.tree
        return weights if tree is None else tree.weights(weights, self.offset, cross)

    def bias_of_beams(self, bias: Bias | None, name: Hashable, query: Tensor, memory_keys: int | None) -> Bias | None:
        """The bias unchanged, or as a bias of folded queries if beams share prefixes.

        Args:
            bias: the bias of rows, one per beam.
            name: the scheme whose layers share the bias, or None.
            query: (B, H, Q, D), not folded.
            memory_keys: number of keys of the memory; None for self-attention.
        """
        tree = self.tree
        if tree is None or bias is None:
            return bias
        cross = memory_keys is not None
        key = ("tree bias", name, cross, query.dtype)
        if name is not None and key in self.memo:
            return self.memo[key]  # type: ignore[no-any-return]
        keys = self.offset + 1 if memory_keys is None else memory_keys
        shapes = Shapes(query.shape[0], query.shape[1], 1, keys, query.dtype, query.device)
        folded = tree.bias(bias, shapes, self.offset, cross)
        if name is not None:
            self.memo[key] = folded
        return folded

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
        """The mask as the backend's `prepare` renders it, once for all layers; with the bias if layers share it."""
        if backend.prepare is None:
            return None
        key = ("prepared", backend.name, mask_name, bias_name, query.shape[1], query.dtype)
        if key not in self.memo:
            shapes = Shapes(query.shape[0], query.shape[1], query.shape[2], keys, query.dtype, query.device)
            with torch.autocast(query.device.type, enabled=False):
                self.memo[key] = backend.prepare(mask, bias if bias_name is not None else None, shapes, backend.options)
        return self.memo[key]  # type: ignore[no-any-return]
