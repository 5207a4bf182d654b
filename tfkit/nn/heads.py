"""Nodes after a stack: projection, pooling, classification, mix of layers, spans, similarity.

spans        start_t = w_s . x_t + b_s,   end_t = w_e . x_t + b_e          BERT, section 4.2, https://aclanthology.org/N19-1423/
similarity   y[i, j] = exp(s) a_i . b_j / (|a_i| |b_j|)                    CLIP, figure 3, https://arxiv.org/abs/2103.00020
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..errors import Diagnostic, InputError
from .layers import Dropout
from .runtime.context import ForwardContext
from .runtime.node_output import NodeOutput, Padding, normed


class Dense(nn.Module):
    """dropout(norm(f(x W + b))), on (B, L, M) or (B, M).

    Args:
        linear: the map x W + b, M -> N.
        activate: f, elementwise; None for the identity.
        norm: norm over N features, or None.
        dropout: probability that a feature is dropped in training.
    """

    def __init__(
        self, linear: nn.Linear, activate: Callable[[Tensor], Tensor] | None, norm: nn.Module | None, dropout: float
    ) -> None:
        super().__init__()
        self.linear, self.activate, self.output_norm = linear, activate, norm
        self.dropout = Dropout(dropout) if dropout > 0.0 else None

    def forward(self, context: ForwardContext, input: NodeOutput) -> NodeOutput:
        """Apply the map.

        Args:
            context: the current call of the model.
            input: (B, L, M) or (B, M).

        Returns:
            (B, L, N) or (B, N), with the padding of the input.
        """
        x = self.linear(input.tensor)
        if self.activate is not None:
            x = self.activate(x)
        if self.output_norm is not None:
            x = normed(self.output_norm, x, input.padding)
        if self.dropout is not None:
            x = self.dropout(x)
        return NodeOutput(x, input.padding, input.ids)


class Classify(nn.Module):
    """Logits over classes, dropout(x) W + b, on (B, L, M) or (B, M).

    Args:
        linear: the map x W + b, M -> classes.
        dropout: probability that a feature of x is dropped in training.
    """

    def __init__(self, linear: nn.Linear, dropout: float) -> None:
        super().__init__()
        self.linear = linear
        self.dropout = Dropout(dropout) if dropout > 0.0 else None

    def forward(self, context: ForwardContext, input: NodeOutput) -> NodeOutput:
        """The logits.

        Args:
            context: the current call of the model.
            input: (B, L, M) or (B, M).

        Returns:
            (B, L, classes) or (B, classes), with the padding of the input.
        """
        x = input.tensor if self.dropout is None else self.dropout(input.tensor)
        return NodeOutput(self.linear(x), input.padding, input.ids)


class Probabilities(nn.Module):
    """softmax(x) over the last axis, on (B, L, V) or (B, V); half dtypes are computed in float32 and rounded once."""

    def forward(self, context: ForwardContext, input: NodeOutput) -> NodeOutput:
        """The probabilities.

        Args:
            context: the current call of the model.
            input: logits (B, L, V) or (B, V).

        Returns:
            The shape of the input, with its padding.
        """
        return NodeOutput(input.tensor.softmax(-1), input.padding, input.ids)


class Pool(nn.Module):
    """(B, L, M) -> (B, M): first, last, mean or maximum over the tokens that are not padding, or the first end token."""

    def __init__(self, name: str, take: str, end_id: int | None, norm: nn.Module | None) -> None:
        super().__init__()
        self.name, self.take, self.end_id, self.output_norm = name, take, end_id, norm

    def forward(self, context: ForwardContext, input: NodeOutput, tokens: NodeOutput | None = None) -> NodeOutput:
        """`tokens` is the output of the tokens node, whose ids contain the end token."""
        x = input.tensor
        visible = input.padding.as_visible(x.shape[1])
        x = _row(x, self._end(tokens)) if tokens is not None and self.take == "end_token" else pooled(x, visible, self.take)
        if self.output_norm is not None:
            x = self.output_norm(x)
        return NodeOutput(x, Padding())

    def _end(self, tokens: NodeOutput) -> Tensor:
        assert tokens.ids is not None
        assert self.end_id is not None
        is_end = tokens.ids.eq(self.end_id)
        traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if not traced and is_end.device.type == "cpu" and not bool(is_end.any(1).all()):
            row = int((~is_end.any(1)).nonzero()[0])
            message = f"row {row} of the input to `{self.name}` {tuple(is_end.shape)} has no end token {self.end_id}"
            raise InputError(Diagnostic("TFK074", message, "`take: end_token` needs one in every row"))
        return is_end.to(torch.int64).argmax(1)


def pooled(x: Tensor, visible: Tensor | None, take: str) -> Tensor:
    """One vector (B, M) per row of (B, L, M): the `first`, `last`, `mean` or `max` of the tokens that are `visible` (B, L)."""
    if visible is None:
        simple = {"first": lambda: x[:, 0], "last": lambda: x[:, -1], "mean": lambda: x.mean(1), "max": lambda: x.amax(1)}
        return simple[take]()
    if take == "first":
        return _row(x, visible.to(torch.int64).argmax(1))
    if take == "last":
        return _row(x, x.shape[1] - 1 - visible.flip(1).to(torch.int64).argmax(1))
    if take == "mean":
        wide = torch.promote_types(x.dtype, torch.float32)  # a half dtype holds neither the sum nor the number of tokens
        visible_tokens = visible.unsqueeze(2)
        return (x.to(wide).masked_fill(~visible_tokens, 0.0).sum(1) / visible_tokens.sum(1).clamp_min(1)).to(x.dtype)
    highest = x.masked_fill(~visible.unsqueeze(2), torch.finfo(x.dtype).min).amax(1)
    return torch.where(visible.any(1, keepdim=True), highest, 0.0)


class LayerMix(nn.Module):
    """scale * sum_n softmax(w)_n h_n over the layers of a stack, Peters et al. 2018 (https://arxiv.org/abs/1802.05365)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, context: ForwardContext, input: NodeOutput) -> NodeOutput:
        assert input.layers is not None
        shares = self.weight.softmax(0)
        layers = input.layers[-len(shares) :]  # the last ones: without the input of the first layer, if that is not mixed
        mixed = layers[0] * shares[0]
        for layer, share in zip(layers[1:], shares[1:], strict=True):
            mixed = mixed + layer * share
        return NodeOutput(mixed * self.scale, input.padding, input.ids)


def _row(x: Tensor, index: Tensor) -> Tensor:
    """(B, M): row index[b] of each (L, M)."""
    return x.gather(1, index[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)


class Similarity(nn.Module):
    """Vectors a (B, M) and b (B, M) -> (B, B): row i compares a_i with every b_j. `scale` s is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(1))

    def forward(self, context: ForwardContext, inputs: tuple[NodeOutput, NodeOutput]) -> NodeOutput:
        a, b = (_unit(output.tensor) for output in inputs)
        return NodeOutput(self.scale.exp() * (a @ b.mT), Padding())


def _unit(x: Tensor) -> Tensor:
    """x / |x|; a zero vector stays zero."""
    return nn.functional.normalize(x, dim=-1, eps=max(1e-12, torch.finfo(x.dtype).tiny))


class SpanLogits(nn.Module):
    """Start and end logits (B, L, 2) of the positions of a sequence; the smallest finite number where no span may be.

    Args:
        linear: the map M -> 2.
        end_id: the end token of a row `<s> first </s> second </s>` whose spans are in the second text or at the first token;
            None if a span may be anywhere but in padding.
    """

    def __init__(self, linear: nn.Linear, end_id: int | None) -> None:
        super().__init__()
        self.linear, self.end_id = linear, end_id

    def forward(self, context: ForwardContext, input: NodeOutput, tokens: NodeOutput | None = None) -> NodeOutput:
        """The logits.

        Args:
            context: the current call of the model.
            input: (B, L, M).
            tokens: the output of the tokens node, whose ids contain the end tokens.

        Returns:
            (B, L, 2), with the padding of the input.
        """
        x = self.linear(input.tensor)
        allowed = input.padding.as_visible(x.shape[1])
        if tokens is not None and self.end_id is not None:
            assert tokens.ids is not None
            allowed = second_text(tokens.ids, self.end_id, allowed)
        if allowed is not None:
            x = x.masked_fill(~allowed.unsqueeze(2), torch.finfo(x.dtype).min)
        return NodeOutput(x, input.padding, input.ids)


def second_text(ids: Tensor, end_id: int, visible: Tensor | None) -> Tensor:
    """(B, L) bool: the tokens after the first end token of each row of `ids` (B, L), without end tokens and padding, and the
    first token. Tokens that are `visible` (B, L) are no padding."""
    visible = torch.ones_like(ids, dtype=torch.bool) if visible is None else visible
    ends = (ids == end_id) & visible
    first = visible & (visible.cumsum(1) == 1)
    return first | ((ends.cumsum(1) > 0) & ~ends & visible)
