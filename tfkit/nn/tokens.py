"""Token embeddings and logits over the vocabulary, Vaswani et al. 2017, section 3.4

embed   dropout(norm(scale * E[id] + S[segment] + p(position)))
logits  softcap(scale * x E^T + b)            E may be the same table
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from ..attention.positions import PositionAt, PositionRange
from ..cpu.low_precision import LowPrecisionHead
from .layers import Dropout, Head, Linear, SharedTable
from .runtime.context import ForwardContext, use
from .runtime.node_output import NodeOutput, normed


class Tokens(nn.Module):
    """Token embeddings, ids (B, L) -> (B, L, M).

    Args:
        name: name of the node.
        embedding: the table (vocab_size, M); None if the node shares the table of another node.
        segments: the table (segments, M) of segment embeddings, or None.
        position: a position scheme that acts on embeddings, or None.
        norm: norm of the sum of the embeddings, or None.
        scale: factor of the token embedding.
        dropout: probability that a feature is dropped in training.

    Reference: https://arxiv.org/abs/1706.03762, section 3.4
    """

    def __init__(
        self,
        name: str,
        embedding: nn.Embedding | None,
        segments: nn.Embedding | None,
        position: nn.Module | None,
        norm: nn.Module | None,
        scale: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.name = name
        self.embedding, self.segments, self.position, self.embedding_norm = embedding, segments, position, norm
        self.scale = scale
        self.dropout = Dropout(dropout) if dropout > 0.0 else None

    def table(self) -> Tensor:
        """The embedding table, which other nodes may share.

        Returns:
            (vocab_size, M)
        """
        assert self.embedding is not None, "the graph finds the node at the end of a chain of `share`"
        return self.embedding.weight

    def forward(
        self,
        context: ForwardContext | None,
        table: SharedTable | None = None,
        lookup: tuple[Tensor, Head | None] | None = None,
    ) -> NodeOutput | Tensor:
        """The embeddings of the ids in `context`.

        Args:
            context: the current call of the model; None with `lookup`.
            table: the table (vocab_size, M) of another node that this node shares, or None.
            lookup: ids for which only the rows of the table are wanted, or the input of a head and the head.

        Returns:
            (B, L, M) with the padding of the ids; for `lookup`, what the embedding returns.
        """
        if lookup is not None:
            input, head = lookup
            assert self.embedding is not None, "the graph finds the node at the end of a chain of `share`"
            own_table = SharedTable(self.embedding)
            return own_table.rows(input) if head is None else own_table.logits(input, head)
        assert context is not None
        ids, padding = context.inputs[self.name], context.padding[self.name]
        if self.embedding is not None:
            x: Tensor = self.embedding(ids)
        else:
            assert table is not None
            x = table.rows(ids)
        if self.scale != 1.0:
            x = x * self.scale
        if self.segments is not None:
            segments = context.segments.get(self.name)
            x = x + self.segments(ids.new_zeros(1, 1) if segments is None else segments)
        if self.position is not None:
            x = use(self.position, "embed", x, self._positions(context, ids, x.dtype))
        if self.embedding_norm is not None:
            x = normed(self.embedding_norm, x, padding)
        if self.dropout is not None:
            x = self.dropout(x)
        seen = ids if context.state is None or context.state.ids is None else torch.cat([context.state.ids, ids], 1)
        return NodeOutput(x, padding, seen)

    def _positions(self, context: ForwardContext, ids: Tensor, dtype: torch.dtype) -> PositionRange:
        state = context.state if context.state is not None and context.state.target == self.name else None
        if state is not None and state.place is not None:
            return PositionAt(state.place, state.capacity, dtype)
        offset = 0 if state is None else state.length
        length = offset + ids.shape[1]
        padding = context.padding[self.name]
        visible = padding.as_visible(length)
        call = PositionRange(ids.shape[1], length, offset, offset, ids.device, dtype, visible)
        return call if padding.positions is None else replace(call, rows=padding.positions, restarts=padding.restarts)


class TokenLogits(nn.Module):
    """Logits over the vocabulary, (B, L, M) -> (B, L, vocab_size).

    Args:
        weight: the map M -> vocab_size; None if the node shares the table of a tokens node.
        bias: (vocab_size,), or None.
        scale: factor of the input.
        softcap: c in c * tanh(logit / c), or None.

    Reference: https://arxiv.org/abs/1706.03762, section 3.4
    """

    def __init__(self, weight: nn.Linear | None, bias: nn.Parameter | None, scale: float, softcap: float | None) -> None:
        super().__init__()
        self.logits = weight
        self.bias = bias
        self.scale, self.softcap = scale, softcap
        self.low_precision: LowPrecisionHead | None = None
        self.loss: Callable[..., Tensor] | None = None
        """Takes x, W, b and `softcap` in a step of training; its result takes the place of the logits, which are then not
        computed."""

    def forward(self, context: ForwardContext, input: NodeOutput, table: SharedTable | None = None) -> NodeOutput:
        """The logits.

        Args:
            context: the current call of the model.
            input: (B, L, M).
            table: the table (vocab_size, M) of another node that this node shares, or None.

        Returns:
            (B, L, vocab_size) with the padding of the input.
        """
        x = input.tensor if self.scale == 1.0 else input.tensor * self.scale
        if self.loss is not None:
            loss = partial(self.loss, softcap=self.softcap)
            return NodeOutput(self._call(table, x, Head(self.bias, loss)), input.padding, input.ids)
        product = None if self.low_precision is None else self.low_precision.logits
        head, columns = Head(self.bias, product), None if context.state is None else context.state.columns
        if columns is not None and columns.head is self:
            head = Head(self.bias, columns.product, columns.ids)
        logits = self._call(table, x, head)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return NodeOutput(logits, input.padding, input.ids)

    def _call(self, table: SharedTable | None, x: Tensor, head: Head) -> Tensor:
        """What `head` computes with the weight of the table, or of the own map. Another library's map computes x W^T itself."""
        if table is not None:
            return table.logits(x, head)
        assert self.logits is not None
        if isinstance(self.logits, Linear):
            return self.logits(x, head)  # type: ignore[no-any-return]
        logits: Tensor = self.logits(x)
        logits = logits if head.bias is None else logits + head.bias
        return logits if head.ids is None else logits.index_select(-1, head.ids)
