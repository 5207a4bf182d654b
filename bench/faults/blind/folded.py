"""Attention with the query heads of a key/value head as rows of one product. The backward pass is autograd's.

Paths: one query uses a contraction without folding; long rows of keys sum their product with the values in pieces; without
gradients, large calls compute bands of queries, so that the scores of one band exist at a time.
"""

from __future__ import annotations

import torch
from declaration import declared
from torch import Tensor

from tfkit.plugin import AttentionInputs, AttentionOutput, DenseBias, LinearBias, Mask, NoOptions, require_capabilities

PIECE = 320
"""Keys of one piece of the product with the values."""
BAND = 2**19
"""Scores of one band of queries."""

BACKEND = declared(
    __name__,
    "Query heads folded by group, with paths for one query, long rows and large calls.",
    reference="https://arxiv.org/abs/2305.13245",
    dropout=True,
    weights="differentiable",
    scores=frozenset({"*"}),
    double_backward=True,
    deterministic_backward=True,
    compile=True,
    export=True,
)
check = require_capabilities(BACKEND.name, BACKEND.capabilities)


def _four(tensor: Tensor) -> Tensor:
    return tensor[(None,) * (4 - tensor.dim())]


def _distance(offset: int | Tensor | None, queries: int, keys: int) -> Tensor:
    """Key minus position of the query, (B|1,Q,K)."""
    places = torch.arange(queries)
    if isinstance(offset, Tensor):  # noqa: SIM108, a fault changes one side
        places = offset.to(torch.int64)[:, None] + places
    else:
        places = (places + (offset or 0))[None]
    return torch.arange(keys) - places[:, :, None]


def _sight(mask: Mask, queries: int, keys: int) -> Tensor | None:
    """True where a query sees a key, (B|1,H|1,Q|1,K|1); None if all see all."""
    sight: Tensor | None = None

    def add(term: Tensor) -> None:
        nonlocal sight
        sight = term if sight is None else sight & term

    if mask.causal or mask.window is not None:
        distance = _distance(mask.offset, queries, keys)[:, None]
        left, right = mask.window or (None, None)
        if mask.causal:
            add(distance <= 0)
        if left is not None:
            add(distance >= -left)
        if right is not None:
            add(distance <= right)
    if mask.key_lengths is not None:
        add((torch.arange(keys) < mask.key_lengths.to(torch.int64)[:, None])[:, None, None])
    if mask.query_lengths is not None:
        add((torch.arange(queries) < mask.query_lengths.to(torch.int64)[:, None])[:, None, :, None])
    if mask.key_visible is not None:
        add(mask.key_visible[:, None, None])
    if mask.query_segments is not None and mask.key_segments is not None:
        add((mask.query_segments.to(torch.int64)[:, :, None] == mask.key_segments.to(torch.int64)[:, None])[:, None])
    if mask.visible is not None:
        add(_four(mask.visible))
    return sight


def _added(inputs: AttentionInputs, queries: int, keys: int, wide: torch.dtype) -> Tensor | None:
    """The bias, (B|1,H|1,Q|1,K|1)."""
    bias = inputs.bias
    if bias is None:
        return None
    if isinstance(bias, DenseBias):
        return _four(bias.values).to(wide)
    distance = _distance(inputs.mask.offset, queries, keys)
    if isinstance(bias, LinearBias):
        return bias.slopes.to(wide)[:, None, None] * -distance.abs()[:, None]
    index = (distance - bias.low).clamp(0, bias.values.shape[1] - 1)
    gathered = bias.values.to(wide).index_select(1, index.flatten())
    return gathered.view(-1, *index.shape).transpose(0, 1)


def _some(tensor: Tensor | None, rows: slice | None) -> Tensor | None:
    """The rows of a band; an axis of size 1 speaks of every row."""
    return tensor if tensor is None or rows is None or tensor.shape[2] == 1 else tensor[:, :, rows]


def _product(query: Tensor, key: Tensor) -> Tensor:
    """(B,H,Q,D), (B,G,K,D) -> (B,H,Q,K)."""
    batch, heads, queries, features = query.shape
    groups, keys = key.shape[1:3]
    if torch.compiler.is_exporting():
        return query @ key.repeat_interleave(heads // groups, 1).mT
    if queries == 1:
        folded = query.reshape(batch, groups, heads // groups, features)
        return torch.einsum("bgrd,bgkd->bgrk", folded, key).reshape(batch, heads, 1, keys)
    folded = query.reshape(batch, groups, heads // groups * queries, features)
    return (folded @ key.mT).reshape(batch, heads, queries, keys)


def _mix(weights: Tensor, value: Tensor) -> Tensor:
    """(B,H,Q,K), (B,G,K,V) -> (B,H,Q,V)."""
    batch, heads, queries, keys = weights.shape
    groups, features = value.shape[1], value.shape[3]
    if torch.compiler.is_exporting():
        return weights @ value.repeat_interleave(heads // groups, 1)
    folded = weights.reshape(batch, groups, heads // groups * queries, keys)
    if keys <= 2 * PIECE:
        mixed = folded @ value
    else:
        mixed = folded[..., :PIECE] @ value[:, :, :PIECE]
        for start in range(PIECE, keys, PIECE):
            mixed = mixed + folded[..., start : start + PIECE] @ value[:, :, start : start + PIECE]
    return mixed.reshape(batch, heads, queries, features)


def _band(inputs: AttentionInputs, rows: slice | None, sight, bias, factors) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output, weights before dropout and log-sum-exp of some queries."""
    query = inputs.query if rows is None else inputs.query[:, :, rows]
    wide = torch.promote_types(query.dtype, torch.float32)
    if inputs.score is None:
        scores = _product(query.to(wide) * inputs.scale, inputs.key.to(wide))
    else:
        scores = inputs.score(query, inputs.key).to(wide)
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    bias = _some(bias, rows)
    if bias is not None:
        scores = scores + bias
    sight, seen = _some(sight, rows), None
    if sight is not None:
        seen = sight.any(-1, keepdim=True)
        scores = scores.masked_fill(~(sight | ~seen), -torch.inf)
    weights = torch.softmax(scores, -1)
    kept = weights if factors is None else weights * _some(factors, rows)
    output = _mix(kept, inputs.value.to(wide))
    lse = torch.logsumexp(scores, -1, keepdim=True) if inputs.return_lse else None
    if seen is not None:
        output = torch.where(seen, output, 0.0)
        weights = torch.where(seen, weights, 0.0)
        lse = None if lse is None else torch.where(seen, lse, -torch.inf)
    return output, weights, lse


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    check(inputs)
    batch, heads, queries, _ = inputs.query.shape
    keys, dtype = inputs.key.shape[2], inputs.query.dtype
    wide = torch.promote_types(dtype, torch.float32)
    sight, bias, factors = _sight(inputs.mask, queries, keys), _added(inputs, queries, keys, wide), None
    if inputs.dropout:
        stay = torch.rand(batch, heads, queries, keys) >= inputs.dropout
        factors = stay.to(wide) / (1.0 - inputs.dropout)
    whole = torch.compiler.is_compiling() or torch.is_grad_enabled() or inputs.score is not None
    step = queries if whole else max(1, BAND // (batch * heads * keys))
    if whole or step >= queries:
        output, weights, lse = _band(inputs, None, sight, bias, factors)
    else:
        bands = [slice(start, start + step) for start in range(0, queries, step)]
        parts = zip(*(_band(inputs, rows, sight, bias, factors) for rows in bands), strict=True)
        output, weights, lse = (None if part[0] is None else torch.cat(part, 2) for part in parts)
    return AttentionOutput(
        output.to(dtype),
        weights=weights.to(dtype) if inputs.return_weights else None,
        lse=None if lse is None else lse.squeeze(-1).to(torch.float32),
    )
