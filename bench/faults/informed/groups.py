"""Attention on the whole score matrix, with paths of its own for one query and for many keys.

    one query      the query heads of a key head become the rows of one product
    many keys      two passes over blocks of keys: maxima and sums first, then the products with the values
    otherwise      one softmax of one product

Queries and their heads are vectors of a group: (B, G, H/G, Q, D). Second derivatives are autograd's, as everything is.
"""

from __future__ import annotations

import torch
from declaration import declared
from torch import Tensor

from tfkit.plugin import (
    AttentionInputs,
    AttentionOutput,
    NoOptions,
    Numerics,
    accumulation,
    dense_bias,
    require_capabilities,
    shapes_of,
    visible,
)

MANY = 640
"""More keys than these are taken in blocks."""
BLOCK = 320


BACKEND = declared(
    __name__,
    "Groups of heads as rows, with paths for one query and for many keys.",
    dropout=True,
    weights="differentiable",
    scores=frozenset({"*"}),
    double_backward=True,
    compile=True,
    numerics=Numerics(probabilities="accumulation", tf32=True),
)
check = require_capabilities(BACKEND.name, BACKEND.capabilities)


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v."""
    check(inputs)
    B, H, Q, _ = inputs.query.shape
    K = inputs.value.shape[2]
    wide = accumulation(inputs.query.dtype)
    shapes = shapes_of(inputs)
    scores = _scores(inputs, wide)
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores * (1.0 / inputs.softcap))
    if inputs.bias is not None:
        scores = scores + dense_bias(inputs.bias, inputs.mask.offset, shapes).to(wide)
    shown, seen = visible(inputs.mask, shapes), None
    if shown is not None:
        seen = shown.any(-1, keepdim=True)
        scores = torch.where(shown, scores, -torch.inf)
        scores = torch.where(seen, scores, 0.0)
    kept = _kept(inputs, (B, H, Q, K), wide)
    value = inputs.value.to(wide)
    if K > MANY:
        output, lse = _in_blocks(scores, value, kept, shown)
        weights = torch.exp(scores - lse) if inputs.return_weights else None
        if weights is not None and shown is not None:
            weights = torch.where(shown, weights, 0.0)
    else:
        weights = torch.softmax(scores, -1)
        if shown is not None:
            weights = torch.where(shown, weights, 0.0)
        lse = torch.logsumexp(scores, -1, keepdim=True)
        output = _times_value(weights if kept is None else weights * kept, value)
    if seen is not None:
        output = torch.where(seen, output, 0.0)
        lse = torch.where(seen, lse, -torch.inf)
    return AttentionOutput(
        output.to(inputs.query.dtype),
        weights.to(inputs.query.dtype) if weights is not None and inputs.return_weights else None,
        lse.squeeze(-1).float() if inputs.return_lse else None,
    )


def _scores(inputs: AttentionInputs, wide: torch.dtype) -> Tensor:
    """scale q . k, or the score function: (B,H,Q,K)."""
    if inputs.score is not None:
        return inputs.score(inputs.query, inputs.key).to(wide)
    B, H, Q, D = inputs.query.shape
    G, K = inputs.key.shape[1:3]
    query, key = inputs.query.to(wide), inputs.key.to(wide)
    if Q == 1:
        rows = query.reshape(B, G, H // G, D) * inputs.scale
        return (rows @ key.mT).view(B, H, 1, K)
    grouped = query.reshape(B, G, H // G, Q, D)
    return (grouped @ key[:, :, None].mT * inputs.scale).flatten(1, 2)


def _times_value(weights: Tensor, value: Tensor) -> Tensor:
    """(B,H,Q,V)"""
    B, H, Q, K = weights.shape
    G = value.shape[1]
    rows = weights.reshape(B, G, H // G * Q, K)
    return (rows @ value).view(B, H, Q, value.shape[3])


def _in_blocks(scores: Tensor, value: Tensor, kept: Tensor | None, shown: Tensor | None) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp by blocks of keys."""
    K = scores.shape[3]
    blocks = [slice(start, min(start + BLOCK, K)) for start in range(0, K, BLOCK)]
    highest = torch.stack([scores[..., block].detach().amax(-1) for block in blocks]).amax(0)[..., None]
    total = torch.zeros_like(highest)
    output = scores.new_zeros(*scores.shape[:3], value.shape[3])
    for block in blocks:
        powers = torch.exp(scores[..., block] - highest)
        total = total + powers.sum(-1, keepdim=True)
        if shown is not None:
            powers = torch.where(shown if shown.shape[3] == 1 else shown[..., block], powers, 0.0)
        if kept is not None:
            powers = powers * kept[..., block]
        output = output + _times_value(powers, value[:, :, block])
    return output / total, highest + torch.log(total)


def _kept(inputs: AttentionInputs, size: tuple[int, ...], wide: torch.dtype) -> Tensor | None:
    """The factors of the dropout draw: 0 or 1/(1-p)."""
    if inputs.dropout == 0.0:
        return None
    coins = torch.rand(size, dtype=torch.float32)
    return (coins >= inputs.dropout).to(wide) / (1.0 - inputs.dropout)
