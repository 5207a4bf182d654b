"""Multi-head attention, Vaswani et al. 2017, section 3.2.2 (https://arxiv.org/abs/1706.03762)

head_h = attention(x W_h^Q, y W_g^K, y W_g^V)      g = h // (H // G), y = x or a memory
output = concat(head_1 .. head_H) W^O
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..attention.choice import BackendChoice, BoundBackend
from ..attention.dispatch import attend
from ..attention.types import AttentionInputs, Bias, DenseBias, Mask
from ..errors import BackendRefused
from ..slots.sublayer import AttentionSettings, settings_of
from .attention_sink import with_sink
from .local_attention import LocalCentre, with_local
from .runtime.context import StackContext, use
from .runtime.decoding_state import KeyValueCache


@dataclass(frozen=True)
class AttentionConfig(AttentionSettings):
    """The settings of one multi-head attention.

    Args:
        num_heads: query heads H.
        num_kv_heads: key/value heads G; a divisor of H.
        head_dim: features per head D.
        scale: factor of q.k, usually D ** -0.5.
        window: (left, right) keys visible around a query; None leaves a side open.
        cross: keys and values come from a memory instead of the sequence itself.
        memory: the node whose output is the memory; None for the memory of the stack.
        score: name of the score function that the backend computes; `dot` also for scores that map keys and then are a dot
            product.
        norm_all_heads: the norm of queries and keys is over all heads together instead of each head.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: tuple[int | None, int | None] | None = None
    cross: bool = False
    memory: str | None = None
    score: str = "dot"
    norm_all_heads: bool = False
    settings: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", settings_of(self))  # once, and not in every call


@dataclass(frozen=True)
class PositionConfig:
    """How a site uses its position scheme.

    Args:
        rotates: the scheme rotates queries and keys.
        biases: the scheme adds a bias to the scores.
        reads_query: the bias depends on the query, so layers cannot share it.
        scheme: index of the stack's scheme; None if the site owns a scheme with a table of its own.
    """

    rotates: bool
    biases: bool
    reads_query: bool
    scheme: int | None


class Position(NamedTuple):
    """The position scheme of a call, and what its `prepare` computed for the positions of this call."""

    scheme: Any
    tables: Any


class SharedBias(NamedTuple):
    """A bias, and the index of the stack's scheme that made it. The index is None if layers do not share the bias."""

    bias: Bias | None
    scheme: int | None


class MultiHeadAttention(nn.Module):
    """Multi-head attention with a replaceable backend, (B, Q, M) -> (B, Q, M).

    `choices` maps the index of each application of the layer in its stack to the backend choice there.

    Args:
        name: the last part of the site names, `<node>.<index>.<name>`.
        projections: linear maps `query` (M -> H * D), `key` and `value` (M or the memory's width -> G * D), `output`
            (H * D -> M), and optionally `gate` (M -> H * V, or H for one factor per head). Without `value` the values are what
            `key` gives; without `key` too, `query` projects all three.
        config: the settings.
        position: how the site uses a position scheme, None for no scheme.
        own_position: the site's own scheme, if `position.scheme` is None.
        query_norm: norm of each query head over D, or None; with `config.norm_all_heads` over H * D.
        key_norm: norm of each key head over D, or None; with `config.norm_all_heads` over G * D.
        score: score function (query, key) -> scores, None for the dot product.
        sink: (H,) the logit of each head that joins the softmax, or None; see `attention_sink.py`.
        value_residual: mixes the values with those of the first layer, or None.
        local: predicts the centre of a query's window, or None for attention to all keys; see `local_attention.py`.

    Reference: https://arxiv.org/abs/1706.03762, section 3.2.2; grouped heads: https://arxiv.org/abs/2305.13245
    """

    def __init__(
        self,
        name: str,
        projections: dict[str, nn.Module],
        config: AttentionConfig,
        position: PositionConfig | None = None,
        own_position: nn.Module | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        score: nn.Module | None = None,
        sink: nn.Parameter | None = None,
        value_residual: nn.Module | None = None,
        local: LocalCentre | None = None,
    ) -> None:
        super().__init__()
        self.name, self.config, self.position_config = name, config, position
        self.query, self.key = projections["query"], projections.get("key")
        self.value, self.output = projections.get("value"), projections["output"]
        self.position, self.query_norm, self.key_norm, self.score = own_position, query_norm, key_norm, score
        self.gate, self.sink, self.value_residual = projections.get("gate"), sink, value_residual
        self.local = local
        self.keeps_values = value_residual is not None
        """Whether later layers may mix their values with those of this site; the stack sets it."""
        self.choices: dict[int, BackendChoice] = {}
        self.weights_backend: BoundBackend | None = None
        self.learns_weights = False
        """Whether the attention weights that a caller asks for have a gradient."""

    def forward(self, x: Float[Tensor, "B Q M"], context: StackContext, index: int) -> Float[Tensor, "B Q N"]:
        """Attention of the new tokens to the sequence so far, or to a memory.

        Args:
            x: (B, Q, M), the new tokens.
            context: the current call of the stack.
            index: which application of the layer this is.

        Returns:
            (B, Q, N), the features of the output projection; N = M inside a layer.
        """
        config, site = self.config, f"{context.stack}.{index}.{self.name}"

        # Projections. Only the first decoding step projects the memory.
        of_queries = self.query(x)
        query = self._normed_heads(of_queries, config.num_heads, self.query_norm)  # (B, H, Q, D)
        memory = context.cached_memory(site) if config.cross else None  # (B, G, K, D) and (B, G, K, V)
        if memory is None:
            source = context.memory_for(config.memory).tensor if config.cross else x
            of_keys = self.key(source) if self.key is not None else self.query(source) if config.cross else of_queries
            of_values = of_keys if self.value is None else self.value(source)
            key = self._normed_heads(of_keys, config.num_kv_heads, self.key_norm)  # N new keys: (B, G, N, D)
            value = self._split(of_values, config.num_kv_heads)  # (B, G, N, V)
        else:
            key, value = memory

        # Position. Keys are rotated before they are cached, so that later steps rotate only their own.
        position = self._position(x, key, context, site, new_keys=memory is None)
        if position is not None and self.position_config.rotates:  # type: ignore[union-attr]
            new = key if memory is None else key[:, :, :0]
            query, rotated = use(position.scheme, "rotate", query, new, position.tables)
            key = rotated if memory is None else key

        # Score function: the part that depends on keys alone, once per key.
        if self.score is not None and memory is None:
            key = use(self.score, "map_keys", key)

        # Values of the first layer. The cache holds the mixed values, so that later steps need no others.
        if self.keeps_values and memory is None:
            first = context.memo.setdefault(("first values", self.name, config.memory), value)
            value = value if self.value_residual is None else self.value_residual(first, value)

        # Cache: (B, G, K, D) and (B, G, K, V) from here on.
        if not config.cross:
            key, value = context.append_to_cache(site, key, value)
        elif memory is None:
            key, value = context.cache_memory(site, key, value)

        # Attention, then all heads side by side through the output projection.
        output = self._attend(query, key, value, position, context, index, site)  # (B, Q, H * V)
        if self.gate is not None:
            gate = torch.sigmoid(self.gate(x))
            gate, heads = (tensor.view(*x.shape[:2], config.num_heads, -1) for tensor in (gate, output))
            output = (heads * gate).flatten(2)  # (B, Q, H, V) times the same or (B, Q, H, 1)
        return self.output(output)  # type: ignore[no-any-return]

    def supports_tree_attention(self, index: int, cache: KeyValueCache) -> bool:
        """Whether the backend can attend over beams that share prefixes, which needs a dense mask.

        It must be the backend that also serves beams which share nothing, so that sharing does not change the backend. With
        `auto`, any backend may serve.

        Args:
            index: which application of the layer.
            cache: the keys and values of the site, not empty.

        Returns:
            True if such a call is supported.
        """
        assert cache.key is not None
        assert cache.value is not None
        config, choice = self.config, self.choices[index]
        key, value = cache.key[:1, :, :1], cache.value[:1, :, :1]  # (1, G, 1, D) and (1, G, 1, V)
        query = key.new_empty(1, config.num_heads, 1, key.shape[3])  # (1, H, 1, D)
        has_bias = (
            self.sink is not None
            or self.local is not None
            or (self.position_config is not None and self.position_config.biases)
        )
        bias = DenseBias(query[..., :1]) if has_bias else None  # (1, H, 1, 1)
        mask = Mask(visible=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=key.device))
        try:
            backend = choice.select(self._inputs(query, key, value, mask, bias), config.score)
        except BackendRefused:
            return False
        return choice.automatic or backend is choice.candidates[0]

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)  # (B, heads, L, D)

    def _normed_heads(self, x: Tensor, heads: int, norm: nn.Module | None) -> Tensor:
        """(B, L, heads * D) -> (B, heads, L, D), with the norm over all heads together or over each."""
        if norm is None:
            return self._split(x, heads)
        if self.config.norm_all_heads:
            return self._split(norm(x).to(x.dtype), heads)
        return norm(self._split(x, heads)).to(x.dtype)  # type: ignore[no-any-return]

    def _position(self, x: Tensor, key: Tensor, context: StackContext, site: str, new_keys: bool) -> Position | None:
        """The scheme and its tables for queries (B, Q, M) and keys (B, G, N, D), which are new in this call or cached."""
        if self.position_config is None:
            return None
        index = self.position_config.scheme
        scheme = self.position if index is None else context.schemes[index]
        start = context.offset if not self.config.cross else 0 if new_keys else key.shape[2]
        keys = start + key.shape[2] if new_keys else key.shape[2]
        return Position(
            scheme, context.tables(scheme, site if index is None else index, context.position_range(keys, start, x))
        )

    def _bias(self, query: Tensor, context: StackContext, position: Position | None) -> SharedBias:
        place = self.position_config
        if place is None or position is None or not place.biases:
            return SharedBias(None, None)
        scheme, tables = position
        if place.reads_query or place.scheme is None:
            return SharedBias(use(scheme, "bias", query, tables, self.config.scale), None)
        return SharedBias(context.shared_bias(scheme, place.scheme, query, tables, self.config.scale), place.scheme)

    def _inputs(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, bias: Bias | None) -> AttentionInputs:
        """The call with the settings of the site. Dropout acts in training only."""
        config, settings = self.config, self.config.settings
        if not self.training:
            settings = {**settings, "dropout": 0.0}
        score = None if config.score == "dot" else self.score
        return AttentionInputs(query, key, value, mask, config.scale, bias, score=score, **settings)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        position: Position | None,
        context: StackContext,
        index: int,
        site: str,
    ) -> Tensor:
        """softmax(scale q k^T + bias, masked) v as (B, Q, H * V); stores the attention weights if the caller wants them."""
        config = self.config
        mask = context.cross_mask(config.memory) if config.cross else context.self_mask(config.window)
        mask_name: Hashable = ("cross", config.memory) if config.cross else ("self", config.window)
        if site in context.model.pairs:
            mask, mask_name = context.site_mask(site, mask, query.shape[2], key.shape[2]), ("pairs", site)
        bias, scheme = self._bias(query, context, position)
        beams = context.sentence_rows(config.cross)  # in a beam search: then a row is a sentence, a query a hypothesis
        if beams is not None:
            keys = key.shape[2] if config.cross else None
            query, bias = beams.folded(query, bias, context.offset, keys, context.memo, scheme)
        inputs = self._inputs(query, key, value, mask, bias)
        if self.sink is not None:
            inputs, scheme, mask_name = with_sink(inputs, self.sink, context.memo, mask_name), None, ("sink", mask_name)
        if self.local is not None:  # every query has a window of its own, so that no two calls share a mask
            inputs, mask_name = with_local(inputs, self.local, query), ("local", len(context.memo))
        backend = self.choices[index].select(inputs, config.score)
        prepared = context.prepared(backend, inputs.mask, mask_name, inputs.bias, scheme, query, inputs.key.shape[2])
        inputs = replace(inputs, prepared=prepared)
        if site in context.model.wanted:
            weights = self._weights(inputs)
            context.model.weights[site] = weights if beams is None else beams.weights(weights, context.offset, config.cross)
        output = attend(backend, inputs).output  # (B, H, Q, V)
        if beams is not None:
            output = beams.unfold_beams(output)
        return output.transpose(1, 2).flatten(2)  # (B, Q, H * V)

    def _weights(self, inputs: AttentionInputs) -> Tensor:
        """Attention weights (B, H, Q, K) before dropout. A second call computes them, so that the output keeps its bits."""
        assert self.weights_backend is not None
        with torch.set_grad_enabled(self.learns_weights and torch.is_grad_enabled()):
            asking = replace(inputs, dropout=0.0, return_weights=True, prepared=None)
            weights = attend(self.weights_backend, asking).weights
        assert weights is not None
        keys = weights.shape[3] // 2 if self.local is not None else weights.shape[3] - (self.sink is not None)
        return weights[..., :keys]
