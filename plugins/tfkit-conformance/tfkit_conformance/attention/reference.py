"""The float64 reference of attention: forward and backward written out, no autograd.

    R_ij = scale q_i . k_j          C_ij = c tanh(R_ij / c), or R_ij          S_ij = C_ij + bias_ij
    P_ij = exp(S_ij - lse_i) for visible j, else 0; if no key is visible, P_i = 0 and lse_i = -inf
    O_i  = sum_j P_ij Z_ij v_j      Z is the dropout draw: 0, or 1/(1-p); 1 without dropout

    dP_ij = Z_ij dO_i . v_j         D_i = sum_j P_ij dP_ij      dS_ij = P_ij (dP_ij - D_i)      dR_ij = dS_ij (1 - (C_ij/c)^2)
    dq_i  = scale sum_j dR_ij k_j   dk_j = scale sum_i dR_ij q_i      dv_j = sum_i P_ij Z_ij dO_i
    dbias: dense sums dS to the shape of its values, linear -dS |d|, distance dS by clamped d;  d = j - (offset + i)

Visibility is computed in plain loops over rule A4. They share no line with `tfkit.attention.rendering`, and so no error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, Bias, DenseBias, LinearBias, Mask

from ..differences import double
from ..finding import Violation
from .backend_under_test import under_test


@dataclass(frozen=True)
class Reference:
    """The float64 result of a call: every quantity of the equations above, on the CPU. Those of the backward pass are computed
    when they are first read.

    Args:
        inputs: the call.
        visible: bool (B,H,Q,K), whether a query sees a key.
        query: (B,H,Q,D)
        key: (B,H,K,D), repeated to H heads.
        value: (B,H,K,V), repeated to H heads.
        grad_output: dO (B,H,Q,V)
        raw: R (B,H,Q,K), the scaled products.
        capped: C (B,H,Q,K), after the softcap.
        bias: (B,H,Q,K) or None.
        scores: S (B,H,Q,K)
        weights: P (B,H,Q,K)
        drawn: Z (B,H,Q,K), the factors of the dropout draw.
        output: O (B,H,Q,V)
        lse: (B,H,Q)
    """

    inputs: AttentionInputs
    visible: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    grad_output: Tensor
    raw: Tensor
    capped: Tensor
    bias: Tensor | None
    scores: Tensor
    weights: Tensor
    drawn: Tensor
    output: Tensor
    lse: Tensor

    @cached_property
    def grad_weights(self) -> Tensor:
        """dP (B,H,Q,K)"""
        return self.drawn * (self.grad_output @ self.value.mT)

    @cached_property
    def row_sums(self) -> Tensor:
        """D (B,H,Q,1)"""
        return (self.weights * self.grad_weights).sum(-1, keepdim=True)

    @cached_property
    def grad_scores(self) -> Tensor:
        """dS (B,H,Q,K)"""
        return self.weights * (self.grad_weights - self.row_sums)

    @cached_property
    def grad_raw(self) -> Tensor:
        """dR (B,H,Q,K)"""
        softcap = self.inputs.softcap
        slope = 1.0 if softcap is None else 1.0 - (self.capped / softcap) ** 2
        return self.grad_scores * slope

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """Of "query", "key", "value" and, if there is a bias, "bias"; in the shapes of the inputs."""
        inputs, G = self.inputs, self.inputs.key.shape[1]
        gradients = {
            "query": inputs.scale * (self.grad_raw @ self.key),
            "key": sum_groups(inputs.scale * (self.grad_raw.mT @ self.query), G),
            "value": sum_groups((self.weights * self.drawn).mT @ self.grad_output, G),
        }
        if inputs.bias is not None:
            gradients["bias"] = bias_gradient(inputs.bias, inputs.mask.offset, self.grad_scores)
        return gradients


def reference(inputs: AttentionInputs, grad_output: Tensor | None = None, drawn: Tensor | None = None) -> Reference:
    """Attention in float64 on the CPU, on exactly the given inputs.

    Args:
        inputs: the call.
        grad_output: the gradient (B,H,Q,V) of the output; zeros by default.
        drawn: the factors (B,H,Q,K) of a dropout draw; ones by default.

    Returns:
        Output, log-sum-exp, weights, gradients and every intermediate of the equations above.

    Raises:
        Violation: the backend that is being checked calls this function.
    """
    if under_test():
        raise Violation("contract", f"`{under_test()}` calls the reference that checks it")
    B, H, Q, _ = inputs.query.shape
    G, K, V = inputs.value.shape[1:]
    query, key, value = (double(tensor) for tensor in (inputs.query, inputs.key, inputs.value))
    key, value = (tensor.repeat_interleave(H // G, dim=1) for tensor in (key, value))
    grad_output = torch.zeros(B, H, Q, V, dtype=torch.float64) if grad_output is None else double(grad_output)
    drawn = torch.ones(B, H, Q, K, dtype=torch.float64) if drawn is None else double(drawn)
    visible = visible_pairs(inputs.mask, B, H, Q, K)

    raw = inputs.scale * (query @ key.mT)
    capped = raw if inputs.softcap is None else inputs.softcap * torch.tanh(raw / inputs.softcap)
    bias = None if inputs.bias is None else bias_pairs(inputs.bias, inputs.mask.offset, B, H, Q, K)
    scores = capped if bias is None else capped + bias

    hidden = scores.masked_fill(~visible, -math.inf)
    highest = hidden.amax(-1, keepdim=True)
    highest = torch.where(highest.isinf(), 0.0, highest)
    unnormalised = torch.exp(hidden - highest)
    total = unnormalised.sum(-1, keepdim=True)
    weights = torch.where(total > 0, unnormalised / torch.where(total > 0, total, 1.0), 0.0)
    output = (weights * drawn) @ value
    return Reference(
        inputs, visible, query, key, value, grad_output, raw, capped, bias, scores, weights, drawn, output,
        (highest + torch.log(total)).squeeze(-1),
    )  # fmt: skip


def visible_pairs(mask: Mask, B: int, H: int, Q: int, K: int) -> Tensor:
    """Rule A4 key by key: bool (B,H,Q,K), True where query i of batch row b and head h sees key j."""
    offsets = _offsets(mask.offset, B)
    key_lengths = None if mask.key_lengths is None else mask.key_lengths.tolist()
    query_lengths = None if mask.query_lengths is None else mask.query_lengths.tolist()
    key_visible = None if mask.key_visible is None else [bytes(sees) for sees in mask.key_visible.tolist()]
    query_segments = None if mask.query_segments is None else mask.query_segments.tolist()
    key_segments = None if mask.key_segments is None else mask.key_segments.tolist()

    def row(b: int, i: int) -> bytes:
        """Of each key, whether query i of batch row b sees it: 0 or 1."""
        position, first, last = offsets[b] + i, 0, K - 1
        if mask.causal:
            last = min(last, position)
        if mask.window is not None:
            left, right = mask.window
            first = first if left is None else max(first, position - left)
            last = last if right is None else min(last, position + right)
        if key_lengths is not None:
            last = min(last, key_lengths[b] - 1)
        if query_lengths is not None and i >= query_lengths[b]:
            return bytes(K)
        sees = bytes([first <= j <= last for j in range(K)])
        if key_visible is not None:
            sees = bytes([one and other for one, other in zip(sees, key_visible[b], strict=True)])
        if query_segments is not None and key_segments is not None:
            sees = bytes([one and other == query_segments[b][i] for one, other in zip(sees, key_segments[b], strict=True)])
        return sees

    pairs = bytearray().join(row(b, i) for b in range(B) for i in range(Q))
    visible = torch.frombuffer(pairs, dtype=torch.bool).view(B, 1, Q, K).expand(B, H, Q, K)
    return visible.clone() if mask.visible is None else visible & mask.visible.cpu().broadcast_to(B, H, Q, K)


def bias_pairs(bias: Bias, offset: int | Tensor | None, B: int, H: int, Q: int, K: int) -> Tensor:
    """The bias of every pair: float64 (B,H,Q,K)."""
    if isinstance(bias, DenseBias):
        return double(bias.values).broadcast_to(B, H, Q, K)
    away = _distances(offset, B, Q, K)
    if isinstance(bias, LinearBias):
        return -double(bias.slopes)[None, :, None, None] * away[:, None].abs()
    index = (away - bias.low).clamp(0, bias.values.shape[1] - 1)
    return torch.stack([double(bias.values)[:, row] for row in index])


def bias_gradient(bias: Bias, offset: int | Tensor | None, grad_scores: Tensor) -> Tensor:
    """The gradient of the bias's own tensor, from that of the scores (B,H,Q,K): a linear map of it."""
    if isinstance(bias, DenseBias):
        return grad_scores.sum_to_size(bias.values.shape)
    B, _, Q, K = grad_scores.shape
    away = _distances(offset, B, Q, K)
    if isinstance(bias, LinearBias):
        return -(grad_scores * away[:, None].abs()).sum((0, 2, 3))
    index = (away - bias.low).clamp(0, bias.values.shape[1] - 1).flatten()
    return torch.zeros(bias.values.shape, dtype=torch.float64).index_add(1, index, grad_scores.transpose(0, 1).flatten(1))


def sum_groups(gradient: Tensor, groups: int) -> Tensor:
    """Sum over the query heads that read one key/value head: (B,H,K,*) -> (B,G,K,*)."""
    B, H, *rest = gradient.shape
    if groups == H:
        return gradient + 0.0  # as a sum, which has no negative zero
    return gradient.reshape(B, groups, H // groups, *rest).sum(2)


def _offsets(offset: int | Tensor | None, B: int) -> list[int]:
    return offset.tolist() if isinstance(offset, Tensor) else [offset or 0] * B


def _distances(offset: int | Tensor | None, B: int, Q: int, K: int) -> Tensor:
    """j - (offset[b] + i): (B,Q,K) integers."""
    positions = torch.tensor([[start + i for i in range(Q)] for start in _offsets(offset, B)])
    return torch.arange(K)[None, None] - positions[:, :, None]
