"""Attention over chunks of queries, with a backward pass of its own.

    forward    P = exp(S - max) / sum for a chunk of queries and all keys; O = (P * Z) V; lse is kept, P is not
    backward   P again from lse; dP = Z * (dO V^T); dS = P * (dP - sum_j dO O); then the products

Everything is computed in float32 or wider. A dropout draw comes from a generator that one number of torch's own seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from declaration import declared
from torch import Tensor
from torch.autograd.function import once_differentiable

from tfkit.plugin import (
    AttentionInputs,
    AttentionOutput,
    DenseBias,
    LinearBias,
    Mask,
    NoOptions,
    Numerics,
    require_capabilities,
)

CHUNK = 176
"""Queries of a chunk."""


BACKEND = declared(
    __name__,
    "Chunks of queries, with a backward pass written out.",
    dropout=True,
    weights="detached",
    deterministic_backward=True,
    numerics=Numerics(probabilities="accumulation", tf32=True),
)
check = require_capabilities(BACKEND.name, BACKEND.capabilities)


@dataclass
class Call:
    """What a call says beside its tensors; `seed` is that of the dropout draw."""

    mask: Mask
    scale: float
    bias: Any
    softcap: float | None
    dropout: float
    seed: int
    weights: bool


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v."""
    check(inputs)
    bias = inputs.bias
    leaf = None if bias is None else bias.slopes if isinstance(bias, LinearBias) else bias.values
    seed = int(torch.randint(2**62, ()).item()) if inputs.dropout > 0.0 else 0
    kind = None if bias is None else (type(bias), getattr(bias, "low", 0))
    call = Call(_snapshot(inputs.mask), inputs.scale, kind, inputs.softcap, inputs.dropout, seed, inputs.return_weights)
    output, lse, weights = _Attention.apply(inputs.query, inputs.key, inputs.value, leaf, call)
    return AttentionOutput(output, weights if inputs.return_weights else None, lse if inputs.return_lse else None)


def _snapshot(mask: Mask) -> Mask:
    """The mask with tensors of its own, which the backward pass reads again."""
    own = {name: term.clone() if isinstance(term, Tensor) else term for name, term in vars(mask).items()}
    return Mask(**own)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, call: Call) -> Any:
        B, H, Q, _ = query.shape
        G, K, V = value.shape[1:]
        wide = torch.promote_types(query.dtype, torch.float32)
        keys, values = (tensor.repeat_interleave(H // G, 1).to(wide) for tensor in (key, value))
        output = torch.empty(B, H, Q, V, dtype=query.dtype)
        lse = torch.empty(B, H, Q, 1, dtype=wide)
        weights = torch.empty(B, H, Q, K, dtype=query.dtype) if call.weights else None
        draw = _generator(call)
        for start in range(0, Q, CHUNK):
            rows = slice(start, min(start + CHUNK, Q))
            scores, _, shown = _scores(query[:, :, rows].to(wide), keys, bias, call, rows)
            seen = shown.any(-1, keepdim=True)
            highest = scores.amax(-1, keepdim=True)
            powers = torch.exp(scores - torch.where(seen, highest, 0.0))
            total = powers.sum(-1, keepdim=True)
            chances = powers / torch.where(seen, total, 1.0)
            lse[:, :, rows] = torch.where(seen, highest + torch.log(total), -torch.inf)
            if weights is not None:
                weights[:, :, rows] = chances.to(query.dtype)
            kept = _kept(chances, call, draw)
            output[:, :, rows] = ((chances if kept is None else chances * kept) @ values).to(query.dtype)
        ctx.save_for_backward(query, key, value, bias, output, lse)
        ctx.call = call
        public = lse.squeeze(-1).float()
        ctx.mark_non_differentiable(public, *([] if weights is None else [weights]))
        return output, public, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, *_: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return _backward(ctx, grad_output)


def _backward(ctx: Any, grad_output: Tensor) -> Any:
    query, key, value, bias, output, lse = ctx.saved_tensors
    call, needs = ctx.call, ctx.needs_input_grad
    B, H, Q, D = query.shape
    G, K, V = value.shape[1:]
    wide = lse.dtype
    keys, values = (tensor.repeat_interleave(H // G, 1).to(wide) for tensor in (key, value))
    grad_query = torch.empty_like(query) if needs[0] else None
    grad_keys, grad_values = torch.zeros_like(keys), torch.zeros_like(values)
    grad_bias = torch.zeros(bias.shape, dtype=wide) if bias is not None and needs[3] else None
    draw = _generator(call)
    for start in range(0, Q, CHUNK):
        rows = slice(start, min(start + CHUNK, Q))
        scores, capped, shown = _scores(query[:, :, rows].to(wide), keys, bias, call, rows)
        seen = shown.any(-1, keepdim=True)
        chances = torch.exp(scores - torch.where(seen, lse[:, :, rows], 0.0))
        sent = torch.where(seen, grad_output[:, :, rows].to(wide), 0.0)
        kept = _kept(chances, call, draw)
        grad_values += (chances if kept is None else chances * kept).mT @ sent
        if not (needs[0] or needs[1] or needs[3]):
            continue
        grad_chances = sent @ values.mT
        if kept is not None:
            grad_chances = grad_chances * kept
        row_sums = (sent * output[:, :, rows].to(wide)).sum(-1, keepdim=True)
        grad_scores = chances * (grad_chances - row_sums)
        if grad_bias is not None:
            _add_bias_gradient(grad_bias, grad_scores, bias, call, rows)
        if call.softcap is not None:
            grad_scores = grad_scores * (1.0 - (capped / call.softcap) ** 2)
        grad_scores = grad_scores * call.scale
        if grad_query is not None:
            grad_query[:, :, rows] = (grad_scores @ keys).to(query.dtype)
        grad_keys += grad_scores.mT @ query[:, :, rows].to(wide)
    return (
        grad_query,
        grad_keys.view(B, G, H // G, K, D).sum(2).to(key.dtype) if needs[1] else None,
        grad_values.view(B, G, H // G, K, V).sum(2).to(value.dtype) if needs[2] else None,
        None if grad_bias is None else grad_bias.to(bias.dtype),
        None,
    )


def _scores(query: Tensor, keys: Tensor, bias: Tensor | None, call: Call, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Scores with -inf where a key is hidden, the scores before the bias, and what is shown (B|1,H|1,q,K)."""
    capped = call.scale * (query @ keys.mT)
    if call.softcap is not None:
        capped = call.softcap * torch.tanh(capped / call.softcap)
    scores = capped
    if bias is not None:
        scores = scores + _bias_of(bias, call, rows, keys.shape[2]).to(scores.dtype)
    shown = _shown(call.mask, rows, keys.shape[2])
    return scores.masked_fill(~shown, -torch.inf), capped, shown


def _distance(offset: int | Tensor | None, rows: slice, K: int) -> Tensor:
    """j - (offset + i): (b,1,q,K)."""
    start = offset.view(-1, 1, 1, 1).long() if isinstance(offset, Tensor) else torch.tensor(offset or 0).view(1, 1, 1, 1)
    return torch.arange(K) - (start + torch.arange(rows.start, rows.stop)[:, None])


def _shown(mask: Mask, rows: slice, K: int) -> Tensor:
    queries, keys = torch.arange(rows.start, rows.stop), torch.arange(K)
    shown = torch.ones(1, 1, len(queries), K, dtype=torch.bool)
    if mask.causal or mask.window is not None:
        distance = _distance(mask.offset, rows, K)
        left, right = mask.window or (None, None)
        if mask.causal:
            right = 0 if right is None else min(right, 0)
        if left is not None:
            shown = shown & (distance >= -left)
        if right is not None:
            shown = shown & (distance <= right)
    if mask.key_lengths is not None:
        shown = shown & (keys < mask.key_lengths.view(-1, 1, 1, 1))
    if mask.query_lengths is not None:
        shown = shown & (queries[:, None] < mask.query_lengths.view(-1, 1, 1, 1))
    if mask.key_visible is not None:
        shown = shown & mask.key_visible[:, None, None]
    if mask.query_segments is not None and mask.key_segments is not None:
        shown = shown & (mask.query_segments[:, None, rows, None] == mask.key_segments[:, None, None])
    if mask.visible is not None:
        shown = shown & _rows_of(mask.visible, rows)
    return shown


def _rows_of(tensor: Tensor, rows: slice) -> Tensor:
    """Four axes, and of the queries those of the chunk; an axis of size 1 speaks of all."""
    tensor = tensor[(None,) * (4 - tensor.dim())]
    return tensor if tensor.shape[2] == 1 else tensor[:, :, rows]


def _bias_of(bias: Tensor, call: Call, rows: slice, K: int) -> Tensor:
    kind, low = call.bias
    if kind is DenseBias:
        return _rows_of(bias, rows)
    distance = _distance(call.mask.offset, rows, K)
    if kind is LinearBias:
        return -bias.to(torch.float64)[:, None, None] * distance.abs()
    index = (distance[:, 0] - low).clamp(0, bias.shape[1] - 1)
    return bias[:, index].transpose(0, 1)


def _add_bias_gradient(total: Tensor, grad_scores: Tensor, bias: Tensor, call: Call, rows: slice) -> None:
    kind, low = call.bias
    if kind is DenseBias:
        part = _rows_of(total, rows)
        part += grad_scores.sum_to_size(part.shape)
        return
    distance = _distance(call.mask.offset, rows, grad_scores.shape[3])
    if kind is LinearBias:
        total -= (grad_scores * distance.abs()).sum((0, 2, 3))
        return
    index = (distance - low).clamp(0, bias.shape[1] - 1).expand(grad_scores.shape[0], 1, -1, -1).flatten()
    total.index_add_(1, index, grad_scores.transpose(0, 1).flatten(1))


def _generator(call: Call) -> torch.Generator:
    return torch.Generator().manual_seed(call.seed)


def _kept(chances: Tensor, call: Call, draw: torch.Generator) -> Tensor | None:
    """The factors of a chunk's dropout draw: 0 or 1/(1-p)."""
    if call.dropout == 0.0:
        return None
    coins = torch.rand(chances.shape, generator=draw)
    return (coins >= call.dropout).to(chances.dtype) / (1.0 - call.dropout)
