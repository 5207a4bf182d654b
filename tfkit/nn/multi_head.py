"""Multi-head attention, Vaswani et al. 2017, section 3.2.2 (https://arxiv.org/abs/1706.03762)

head_h = attention(x W_h^Q, y W_g^K, y W_g^V)      g = h // (H // G), y = x or a memory
output = concat(head_1 .. head_H) W^O
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.choice import BackendChoice, BoundBackend
from ..attention.dispatch import attend
from ..attention.types import AttentionInputs, Bias, DenseBias, Mask, Shapes
from ..errors import BackendRefused
from .cpu.prepacked import PrepackedWeights
from .cpu.small_batch import project
from .runtime.context import StackContext
from .runtime.decoding_state import KeyValueCache


@dataclass(frozen=True)
class HeadShape:
    """H query heads, G key/value heads, D features per head."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class AttentionRule:
    """How scores become weights: their scale, softcap, dropout and window, and which memory is read (None: the stack's)."""

    scale: float
    softcap: float | None
    dropout: float
    window: tuple[int | None, int | None] | None
    cross: bool
    memory: str | None
    score: str


@dataclass(frozen=True)
class PositionUse:
    """The position scheme of a site: where it acts, whether its bias reads the query, and which of the stack's schemes it is
    (None: the site has its own, with a table of its own)."""

    rotates: bool
    biases: bool
    reads_query: bool
    index: int | None


class MultiHeadAttention(nn.Module):
    """(B, L, M) -> (B, L, M). `choices` holds one backend choice per application of the layer, by layer index."""

    def __init__(
        self,
        name: str,
        projections: dict[str, nn.Linear],
        shape: HeadShape,
        rule: AttentionRule,
        position: PositionUse | None,
        own_position: nn.Module | None,
        query_norm: nn.Module | None,
        key_norm: nn.Module | None,
        score: nn.Module | None,
    ) -> None:
        super().__init__()
        self.name, self.shape, self.rule, self.use = name, shape, rule, position
        self.query, self.key = projections["query"], projections["key"]
        self.value, self.output = projections["value"], projections["output"]
        self.position, self.query_norm, self.key_norm, self.score = own_position, query_norm, key_norm, score
        self.choices: dict[int, BackendChoice] = {}
        self.weights_backend: BoundBackend | None = None

    def forward(self, x: Tensor, context: StackContext, index: int) -> Tensor:
        """x (B, L, M) of `run.queries` new tokens; `index` is the layer's place in its stack."""
        rule = self.rule
        site = f"{context.stack}.{index}.{self.name}"
        prepacked = context.model.prepacked
        query = self._split(project(self.query, x, prepacked), self.shape.heads)
        if self.query_norm is not None:
            query = self.query_norm(query).to(query.dtype)
        query, key, value, tables, scheme = self._keys(x, query, context, site)
        mask = context.cross_mask(rule.memory) if rule.cross else context.self_mask(rule.window)
        mask_name = ("cross", rule.memory) if rule.cross else ("self", rule.window)
        bias, bias_name = self._bias(query, context, tables, scheme)
        tree = context.tree
        if tree is not None:
            if bias is not None:
                keys = key.shape[2] if rule.cross else context.offset + 1
                shapes = Shapes(query.shape[0], query.shape[1], 1, keys, query.dtype, query.device)
                bias = context.beam_bias(tree, bias, bias_name, shapes, rule.cross)
            query = tree.fold_beams(query)
        dropout = rule.dropout if self.training else 0.0
        backend = self.choices[index].select(query, key, value, mask, bias, dropout, rule.softcap, rule.score)
        prepared = context.prepared(backend, mask, mask_name, bias, bias_name, query, key.shape[2])
        inputs = AttentionInputs(
            query, key, value, mask, rule.scale, bias, rule.softcap, dropout, self.score, prepared=prepared
        )
        if site in context.model.wanted:
            weights = self._weights(inputs)
            context.model.weights[site] = weights if tree is None else tree.weights(weights, context.offset, rule.cross)
        merged = attend(backend, inputs).output.transpose(1, 2).flatten(2)  # (B, L, H * V)
        return project(self.output, merged if tree is None else merged.view(*x.shape[:2], -1), prepacked)

    def supports_tree_attention(self, index: int, cache: KeyValueCache) -> bool:
        """Whether this site's backend can serve hypotheses that share their beginnings, told apart by a mask of their own: the
        one that serves rows of their own too, unless the choice is automatic."""
        assert cache.key is not None
        assert cache.value is not None
        H, choice = self.shape.heads, self.choices[index]
        key, value = cache.key[:1, :, :1], cache.value[:1, :, :1]
        query = key.new_empty(1, H, 1, key.shape[3])
        bias = DenseBias(query[..., :1]) if self.use is not None and self.use.biases else None
        mask = Mask(visible=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=key.device))
        rest = (bias, self.rule.dropout if self.training else 0.0, self.rule.softcap, self.rule.score)
        try:
            found = choice.select(query, key, value, mask, *rest)
        except BackendRefused:
            return False
        return choice.automatic or found is choice.candidates[0]

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.shape.head_dim).transpose(1, 2)  # (B, heads, L, D)

    def _project(self, source: Tensor, prepacked: PrepackedWeights | None) -> tuple[Tensor, Tensor]:
        key = self._split(project(self.key, source, prepacked), self.shape.kv_heads)
        if self.key_norm is not None:
            key = self.key_norm(key).to(key.dtype)
        return key, self._split(project(self.value, source, prepacked), self.shape.kv_heads)

    def _keys(self, x: Tensor, query: Tensor, context: StackContext, site: str) -> tuple[Tensor, Tensor, Tensor, Any, Any]:
        """The query with its position, and all keys and values it may see; new ones join the cache while decoding."""
        rule, state = self.rule, context.state
        held = state.crossed.get(site) if state is not None and rule.cross else None
        if held is not None:
            key, value = held
            start, keys = key.shape[2], key.shape[2]
        else:
            key, value = self._project(context.memory_for(rule.memory).tensor if rule.cross else x, context.model.prepacked)
            start = 0 if rule.cross else context.offset
            keys = start + key.shape[2]
        scheme = tables = None
        if self.use is not None:
            scheme = self.position if self.use.index is None else context.schemes[self.use.index]
            name = site if self.use.index is None else self.use.index
            tables = context.tables(scheme, name, context.span(keys, start, x))
            if self.use.rotates:
                query, turned = scheme.rotate(query, key if held is None else key[:, :, :0], tables)  # type: ignore[union-attr, operator]
                key = turned if held is None else key
        if state is not None and rule.cross and held is None:
            # Every step reads all of them, which is faster where they lie head after head than token after token.
            key, value = state.crossed[site] = (key.contiguous(), value.contiguous())
        elif state is not None and not rule.cross:
            if site not in state.caches:
                state.caches[site] = KeyValueCache(state.capacity)
            if state.tree is not None:
                start, key, value = state.tree.slots, state.tree.fold_beams(key), state.tree.fold_beams(value)
            key, value = state.caches[site].write(start, key, value)
        return query, key, value, tables, scheme

    def _bias(self, query: Tensor, context: StackContext, tables: Any, scheme: Any) -> tuple[Bias | None, int | None]:
        """The bias of the scores, and the number of the stack's scheme that made it where all its layers share it."""
        use = self.use
        if use is None or not use.biases:
            return None, None
        if use.reads_query or use.index is None:
            return scheme.bias(query, tables, self.rule.scale), None
        return context.shared_bias(scheme, use.index, query, tables, self.rule.scale), use.index

    def _weights(self, inputs: AttentionInputs) -> Tensor:
        """The attention weights (B, H, Q, K) before dropout, by a second call beside the unchanged one."""
        assert self.weights_backend is not None
        with torch.no_grad():
            beside = AttentionInputs(
                inputs.query, inputs.key, inputs.value, inputs.mask, inputs.scale, inputs.bias, inputs.softcap,
                score=inputs.score, return_weights=True,
            )  # fmt: skip
            weights = attend(self.weights_backend, beside).weights
        assert weights is not None
        return weights
