"""The state of one forward pass: of the whole model, and of one stack.

Masks, position tables, biases and the prepared masks of backends depend on the batch, not on the layer. `StackContext` computes
each when the first layer needs it, and the other layers reuse it.

What other libraries register on a module (hooks, FSDP, offloading) acts in calls of the module alone. Position schemes, cells
and scores act by methods (`embed`, `rotate`, `step`, `map_keys`), so a model uses these by calls too (`MethodModule`, `use`).

The contexts are no dataclasses: FSDP copies a dataclass among the arguments of a module, and the copies would share nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...attention.choice import BoundBackend
from ...attention.positions import PositionAt, PositionRange
from ...attention.types import Bias, Mask, Prepared, Shapes
from ...errors import Diagnostic, InputError
from .beam_tree import BeamTree, SentenceRows
from .decoding_state import DecodingState, KeyValueCache
from .node_output import NodeOutput, Padding


class ForwardContext:
    """One call of a model.

    Args:
        inputs: token ids (B, L), images (B, C, H, W) or features (B, L, F) by input node.
        padding: their padding by input node.
        segments: segment ids (B, L) by input node.
        state: the decoding state, None outside of incremental decoding.
        wanted: sites whose attention weights the caller wants.
        pairs: by attention site, (B, Q, K) bool, the keys that each query may see there.
    """

    def __init__(
        self,
        inputs: dict[str, Tensor],
        padding: dict[str, Padding],
        segments: dict[str, Tensor],
        state: DecodingState | None = None,
        wanted: frozenset[str] = frozenset(),
        pairs: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.inputs, self.padding, self.segments = inputs, padding, segments
        self.state, self.wanted, self.pairs = state, wanted, pairs or {}
        self.weights: dict[str, Tensor] = {}
        """Attention weights (B, H, Q, K) of the wanted sites, filled by the sites."""

    def stack_context(
        self,
        node: str,
        input: NodeOutput,
        causal: bool = False,
        memory: NodeOutput | None = None,
        memories: dict[str, NodeOutput] | None = None,
        schemes: tuple[Any, ...] = (),
        repeats: bool = False,
    ) -> StackContext:
        """The context of one call of a node that owns attention sites.

        Args:
            node: the node's name.
            input: the node's input, (B, L, M).
            causal: self-attention is causal. Only a causal node caches keys while decoding.
            memory: what cross-attention reads.
            memories: further memories by reference.
            schemes: position schemes whose tables the sites share.
            repeats: the node calls its sites once per step of a loop.

        Returns:
            The context, with an empty memo.
        """
        offset = self.state.length if self.state is not None and causal else 0
        queries = input.tensor.shape[1]
        return StackContext(self, node, causal, input.padding, queries, offset, memory, memories or {}, schemes, repeats)


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
        repeats: sites are called once per step of a loop, so that keys and values of the memory are kept for all steps.
    """

    def __init__(
        self,
        model: ForwardContext,
        stack: str,
        causal: bool,
        padding: Padding,
        queries: int,
        offset: int,
        memory: NodeOutput | None,
        memories: dict[str, NodeOutput],
        schemes: tuple[Any, ...],
        repeats: bool = False,
    ) -> None:
        self.model, self.stack, self.causal, self.padding = model, stack, causal, padding
        self.queries, self.offset = queries, offset
        self.memory, self.memories, self.schemes, self.repeats = memory, memories, schemes, repeats
        self.memo: dict[Hashable, Any] = {}
        """Masks, tables and biases that the layers share, by key."""

    def changed(self, **changes: Any) -> StackContext:
        """A copy with other values of some attributes.

        Args:
            changes: values by attribute.

        Returns:
            The copy. It shares the memo unless `changes` has one.
        """
        copied = copy(self)
        for name, value in changes.items():
            setattr(copied, name, value)
        return copied

    @property
    def state(self) -> DecodingState | None:
        """The decoding state, if this stack is decoded incrementally."""
        return self.model.state if self.causal else None

    @property
    def place(self) -> Tensor | None:
        """(1,) the position of the one new token as a tensor, in a step of fixed shapes."""
        state = self.state
        return None if state is None else state.place

    @property
    def tree(self) -> BeamTree | None:
        """The beams that share prefixes, if there are any."""
        state = self.state
        return None if state is None else state.tree

    def sentence_rows(self, cross: bool) -> SentenceRows | None:
        """What makes the hypotheses of a sentence one row of self-attention, or with `cross` of cross-attention; else None."""
        state = self.state
        return None if state is None else state.tree or (state.memory_rows if cross else None)

    def memory_for(self, name: str | None) -> NodeOutput:
        """A memory of this call.

        Args:
            name: the reference that a sub-layer names; None for the memory of the stack.

        Returns:
            The output of the node, (B, K, M).
        """
        memory = self.memories[name] if name else self.memory
        assert memory is not None, "the graph's rules give every cross-attention a memory"
        return memory

    def self_mask(self, window: tuple[int | None, int | None] | None) -> Mask:
        """The mask of self-attention: causality, window, padding, documents, and the prefix that every token sees.

        Args:
            window: (left, right) keys visible around a query; None leaves a side open.

        Returns:
            The mask of (B, H, Q, K), one object for all layers with this window.
        """
        mask = self.memo.get(("self", window))
        if mask is None and self.tree is not None:
            mask = self.memo["self", window] = self.tree.mask(window, self.offset)
        if mask is None and self.place is not None:
            offset = self.place.expand(self.model.state.batch)  # type: ignore[union-attr]
            mask = self.memo["self", window] = Mask(causal=True, window=window, offset=offset)
        if mask is None:
            padding, prefixes = self.padding, self.padding.prefixes if self.causal else None
            mask = self.memo["self", window] = Mask(
                causal=self.causal and prefixes is None,
                window=window,
                offset=self.offset,
                key_lengths=padding.lengths,
                query_lengths=padding.lengths if self.causal else None,
                key_visible=padding.visible,
                query_segments=padding.documents,
                key_segments=padding.documents,
                visible=None if prefixes is None else self._causal_after(prefixes),
            )
        return mask

    def _causal_after(self, prefixes: Tensor) -> Tensor:
        """(B, 1, L, L) bool: keys up to the query, and all keys of the prefix."""
        places = torch.arange(self.queries, device=prefixes.device)
        return (places <= places[:, None]) | (places < prefixes[:, None, None, None])

    def cross_mask(self, name: str | None) -> Mask:
        """The mask of cross-attention: the padding of the memory, and documents of the same number.

        Args:
            name: the memory, as in `memory_for`.

        Returns:
            The mask of (B, H, Q, K), one object for all layers that read this memory.
        """
        mask = self.memo.get(("cross", name))
        if mask is None:
            padding = self.memory_for(name).padding
            mask = Mask(
                offset=self.offset,
                key_lengths=padding.lengths,
                key_visible=padding.visible,
                query_segments=self.padding.documents,
                key_segments=padding.documents,
            )
            self.memo["cross", name] = mask
        return mask

    def site_mask(self, site: str, mask: Mask, queries: int, keys: int) -> Mask:
        """The mask of one site: that of its layers, and the pairs that the call gives for it.

        Raises:
            InputError: the pairs have another shape than (B, Q, K).
        """
        pairs = self.model.pairs[site]
        if pairs.dim() != 3 or pairs.shape[1:] != (queries, keys):
            message = f"the mask of `{site}` has shape {tuple(pairs.shape)}, its queries and keys are {queries} and {keys}"
            raise InputError(Diagnostic("TFK070", message, "the mask of an attention site is bool (batch, queries, keys)"))
        return replace(mask, visible=pairs[:, None] if mask.visible is None else mask.visible & pairs[:, None])

    def position_range(self, keys: int, key_start: int, like: Tensor) -> PositionRange:
        """The positions of queries and keys in this call.

        Args:
            keys: number of keys K, cached ones included.
            key_start: position of the first key that is new in this call.
            like: a tensor with the device and dtype of the tables.

        Returns:
            The positions, as a position scheme's `prepare` reads them.
        """
        if self.place is not None:
            return PositionAt(self.place, self.model.state.capacity, like.dtype)  # type: ignore[union-attr]
        padding = self.padding
        visible = padding.as_visible(self.offset + self.queries)
        call = PositionRange(self.queries, keys, self.offset, key_start, like.device, like.dtype, visible)
        return call if padding.positions is None else replace(call, rows=padding.positions, restarts=padding.restarts)

    def tables(self, scheme: Any, name: Hashable, positions: PositionRange) -> Any:
        """The tables of a position scheme, computed once for all layers that use it.

        Args:
            scheme: the scheme's module.
            name: the key of the scheme in this call: its index in the stack, or the site that owns it.
            positions: the positions of this call.

        Returns:
            What the scheme's `prepare` returns.
        """
        key = ("tables", name)
        if key not in self.memo:
            self.memo[key] = use(scheme, "prepare", positions)
        return self.memo[key]

    def added_positions(self, number: int, x: Tensor) -> Tensor:
        """The positions that are added to the input of layers, computed once for all of them.

        Args:
            number: the index of the scheme in the stack.
            x: (B, L, M).

        Returns:
            (1, L, M) or (B, L, M).
        """
        key = ("added", number, x.dtype)
        if key not in self.memo:
            span = self.position_range(self.offset + self.queries, self.offset, x)
            self.memo[key] = use(self.schemes[number], "embed", torch.zeros_like(x[:1]), span)
        return self.memo[key]  # type: ignore[no-any-return]

    def shared_bias(self, scheme: Any, name: Hashable, query: Tensor, tables: Any, scale: float) -> Bias:
        """A bias that does not depend on the query, computed once for all layers that use the scheme.

        Args:
            scheme: the scheme's module.
            name: the key of the scheme in this call, as in `tables`.
            query: (B, H, Q, D), for shapes and dtype.
            tables: the scheme's tables.
            scale: factor of q.k.

        Returns:
            The bias of scores (B, H, Q, K).
        """
        key = ("bias", name, query.dtype)
        if key not in self.memo:
            self.memo[key] = use(scheme, "bias", query, tables, scale)
        return self.memo[key]  # type: ignore[no-any-return]

    def cached_memory(self, site: str) -> tuple[Tensor, Tensor] | None:
        """The keys and values of a memory that an earlier step projected.

        Args:
            site: name of the cross-attention site.

        Returns:
            Keys (B, G, K, D) and values (B, G, K, V); None in the first step.
        """
        return self.memo.get(("memory", site)) if self.state is None else self.state.crossed.get(site)

    def cache_memory(self, site: str, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of a memory for later steps.

        Args:
            site: name of the cross-attention site.
            key: (B, G, K, D).
            value: (B, G, K, V).

        Returns:
            Both, contiguous while decoding.
        """
        if self.state is None:
            if self.repeats:
                self.memo["memory", site] = key, value
            return key, value
        # Every step reads all of them. That is faster with the tokens of one head next to each other in memory.
        self.state.crossed[site] = key.contiguous(), value.contiguous()
        return self.state.crossed[site]

    def append_to_cache(self, site: str, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys and values to the cache of a site. Outside of decoding nothing is kept.

        Beams that share prefixes append one key each to the row of their sentence.

        Args:
            site: name of the self-attention site.
            key: (B, G, N, D), the new keys.
            value: (B, G, N, V), the new values.

        Returns:
            All keys (B, G, K, D) and values (B, G, K, V) so far.
        """
        state = self.state
        if state is None:
            return key, value
        cache, start = state.caches.setdefault(site, KeyValueCache(state.capacity)), self.offset
        cache.check_dtype(site, key)
        if state.tree is not None:
            start, key, value = state.tree.slots, state.tree.fold_beams(key), state.tree.fold_beams(value)
        return cache.write(start, key, value)

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
        """The mask as the backend's `prepare` renders it, once for all layers; with the bias if layers share it.

        The mask of a memory without a bias is the same in every step of decoding, so it is rendered once for all steps.

        Args:
            backend: the backend of the call.
            mask: the mask.
            mask_name: the key of the mask in this call.
            bias: the bias, or None.
            bias_name: the key of the scheme whose layers share the bias; None if they do not.
            query: (B, H, Q, D), folded.
            keys: number of keys K.

        Returns:
            The rendered mask, or None if the backend has no `prepare`.
        """
        if backend.prepare is None:
            return None
        key: Hashable = ("prepared", backend.name, mask_name, bias_name, query.shape[1], query.dtype)
        held: dict[Hashable, Any] = self.memo
        of_memory = isinstance(mask_name, tuple) and mask_name[0] == "cross"
        eager = self.place is None and not torch.compiler.is_compiling()  # a program has sizes that are not numbers
        if of_memory and bias is None and eager and self.state is not None:
            key, held = (self.stack, backend.name, mask_name, query.shape, query.dtype, keys), self.state.prepared
        if key not in held:
            shapes = Shapes(query.shape[0], query.shape[1], query.shape[2], keys, query.dtype, query.device)
            enabled = not query.is_meta and torch.is_autocast_enabled(query.device.type)
            # An exported program with the block of an autocast that changes nothing cannot be loaded.
            with torch.autocast(query.device.type, enabled=False) if enabled else nullcontext():
                held[key] = backend.prepare(mask, bias if bias_name is not None else None, shapes, backend.options)
        return held[key]  # type: ignore[no-any-return]


class MethodModule(nn.Module):
    """`module("embed", x, span)` is `module.embed(x, span)` as a call of the module.

    A part of a plugin that has weights of its own may derive from this class, so that hooks, FSDP and offloading act on it.
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(self, method: str, *arguments: Any) -> Any:
        """What a method returns.

        Args:
            method: the name of the method.
            arguments: its arguments.

        Returns:
            Its result.
        """
        return getattr(self, method)(*arguments)


def use(part: Any, method: str, *arguments: Any) -> Any:
    """`part.method(*arguments)`, as a call of the part if it is a `MethodModule`."""
    return part(method, *arguments) if isinstance(part, MethodModule) else getattr(part, method)(*arguments)
