"""Attention by chunks of queries. The backward pass is written out, and computes the scores of each chunk again:

    P = exp(S - lse)    dV = (P Z)^T dO    dP = Z (dO V^T)    dS = P (dP - rowsum(P dP))    dQ = scale dS K    dK = scale dS^T Q

with Z the dropout factors, drawn again from the seed of the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_

import torch
from declaration import declared
from torch import Tensor
from torch.autograd.function import once_differentiable

from tfkit.plugin import AttentionInputs, AttentionOutput, DenseBias, DistanceBias, LinearBias, NoOptions, require_capabilities

ROWS = 40
"""Queries of one chunk."""

BACKEND = declared(
    __name__,
    "Chunks of queries, with a backward pass that computes the scores again.",
    reference="https://arxiv.org/abs/2112.05682",
    dropout=True,
    weights="detached",
    deterministic_backward=True,
)
check = require_capabilities(BACKEND.name, BACKEND.capabilities)


@dataclass(frozen=True)
class Call:
    """What a call is besides its differentiable tensors. Tensors of the mask are copies: the caller may change its own."""

    scale: float
    softcap: float | None
    dropout: float
    seed: int
    left: int | None
    right: int | None
    offset: Tensor | None  # (B|1,1,1)
    low: int | None
    kind: type | None
    terms: dict[str, Tensor]
    weights: bool

    def distances(self, rows: slice, keys: int) -> Tensor:
        """Key minus position of the query, (B|1,q,K)."""
        places = torch.arange(rows.start, rows.stop)[:, None]
        return torch.arange(keys) - (self.offset + places)

    def sight(self, rows: slice, keys: int) -> Tensor | None:
        """True where a query of the chunk sees a key, (B|1,H|1,q|1,K|1); None if all see all."""
        found = []
        if self.left is not None or self.right is not None:
            distance = self.distances(rows, keys)[:, None]
            if self.left is not None:
                found.append(distance >= -self.left)
            if self.right is not None:
                found.append(distance <= self.right)
        places = torch.arange(rows.start, rows.stop)
        if "key_lengths" in self.terms:
            found.append((torch.arange(keys) < self.terms["key_lengths"][:, None])[:, None, None])
        if "query_lengths" in self.terms:
            found.append((places < self.terms["query_lengths"][:, None])[:, None, :, None])
        if "key_visible" in self.terms:
            found.append(self.terms["key_visible"][:, None, None])
        if "query_segments" in self.terms:
            query, key = self.terms["query_segments"][:, rows], self.terms["key_segments"]
            found.append((query[:, :, None] == key[:, None])[:, None])
        if "visible" in self.terms:
            found.append(_rows_of(self.terms["visible"], rows))
        return reduce(and_, found) if found else None

    def added(self, bias: Tensor, rows: slice, keys: int, wide: torch.dtype) -> Tensor:
        """The bias of the chunk, (B|1,H|1,q|1,K|1)."""
        if self.kind is DenseBias:
            return _rows_of(_four(bias), rows).to(wide)
        distance = self.distances(rows, keys)
        if self.kind is LinearBias:
            return -bias.to(wide)[:, None, None] * distance.abs()[:, None]
        index = (distance - self.low).clamp(0, bias.shape[1] - 1)
        return bias.to(wide)[:, index].transpose(0, 1)

    def scores(self, query: Tensor, key: Tensor, bias: Tensor | None, rows: slice):
        """Scores (B,H,q,K) with -inf where hidden, the tanh of the cap, and which queries see a key."""
        scores = _grouped(query * self.scale, key.mT)
        bent = None
        if self.softcap is not None:
            bent = torch.tanh(scores / self.softcap)
            scores = self.softcap * bent
        if bias is not None:
            scores = scores + self.added(bias, rows, key.shape[2], key.dtype)
        sight, seen = self.sight(rows, key.shape[2]), None
        if sight is not None:
            scores = scores.masked_fill(~sight, -torch.inf)
            seen = sight.any(-1, keepdim=True)
        return scores, bent, seen

    def factors(self, generator: torch.Generator, shape: torch.Size, wide: torch.dtype) -> Tensor:
        stay = torch.rand(shape, generator=generator) >= self.dropout
        return stay.to(wide) / (1.0 - self.dropout)


def _four(tensor: Tensor) -> Tensor:
    return tensor[(None,) * (4 - tensor.dim())]


def _rows_of(tensor: Tensor, rows: slice) -> Tensor:
    return tensor if tensor.shape[2] == 1 else tensor[:, :, rows]


def _grouped(rows: Tensor, shared: Tensor) -> Tensor:
    """rows (B,H,q,N) @ shared (B,G,N,M) -> (B,H,q,M)."""
    batch, heads, queries, inner = rows.shape
    groups = shared.shape[1]
    folded = rows.reshape(batch, groups, heads // groups * queries, inner)
    return (folded @ shared).view(batch, heads, queries, shared.shape[3])


def _grouped_transposed(rows: Tensor, other: Tensor, groups: int) -> Tensor:
    """The sum over the heads of a group: rows (B,H,q,K)^T @ other (B,H,q,N) -> (B,G,K,N)."""
    rows, other = (t.reshape(t.shape[0], groups, -1, t.shape[3]) for t in (rows, other))
    return rows.mT @ other


class _Chunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, call: Call):
        wide = torch.promote_types(query.dtype, torch.float32)
        k, v = key.to(wide), value.to(wide)
        queries, keys = query.shape[2], key.shape[2]
        output = query.new_empty(*query.shape[:3], value.shape[3])
        lse = query.new_empty(query.shape[:3], dtype=wide)
        weights = query.new_empty(*query.shape[:3], keys) if call.weights else None
        generator = torch.Generator().manual_seed(call.seed)
        for start in range(0, queries, ROWS):
            rows = slice(start, min(start + ROWS, queries))
            scores, _, seen = call.scores(query[:, :, rows].to(wide), k, bias, rows)
            top = scores.amax(-1, keepdim=True)
            if seen is not None:
                top = torch.where(seen, top, 0.0)
            shares = torch.exp(scores - top)
            total = shares.sum(-1, keepdim=True)
            lse[:, :, rows] = (top + torch.log(total)).squeeze(-1)
            shares = shares / total
            if seen is not None:
                shares = torch.where(seen, shares, 0.0)
            if weights is not None:
                weights[:, :, rows] = shares
            if call.dropout:
                shares = shares * call.factors(generator, shares.shape, wide)
            output[:, :, rows] = _grouped(shares, v)
        ctx.save_for_backward(query, key, value, bias, lse)
        ctx.call = call
        result = lse.to(torch.float32, copy=True)
        ctx.mark_non_differentiable(result, *([] if weights is None else [weights]))
        return output, result, weights

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor, *_):
        query, key, value, bias, lse = ctx.saved_tensors
        call: Call = ctx.call
        wide, groups = lse.dtype, key.shape[1]
        k, v = key.to(wide), value.to(wide)
        queries, keys = query.shape[2], key.shape[2]
        d_query = torch.empty(query.shape, dtype=wide)
        d_key, d_value = torch.zeros(key.shape, dtype=wide), torch.zeros(value.shape, dtype=wide)
        d_bias = torch.zeros(bias.shape, dtype=wide) if bias is not None and ctx.needs_input_grad[3] else None
        generator = torch.Generator().manual_seed(call.seed)
        for start in range(0, queries, ROWS):
            rows = slice(start, min(start + ROWS, queries))
            q, g = query[:, :, rows].to(wide), grad[:, :, rows].to(wide)
            scores, bent, seen = call.scores(q, k, bias, rows)
            level = lse[:, :, rows, None]
            if seen is not None:
                level = torch.where(seen, level, 0.0)
                g = torch.where(seen, g, 0.0)
            shares = torch.exp(scores - level)
            d_shares, kept = _grouped(g, v.mT), shares
            if call.dropout:
                factors = call.factors(generator, shares.shape, wide)
                d_shares, kept = d_shares * factors, shares * factors
            d_value += _grouped_transposed(kept, g, groups)
            d_scores = shares * (d_shares - (shares * d_shares).sum(-1, keepdim=True))
            if d_bias is not None:
                _add_bias_gradient(d_bias, d_scores, call, rows, keys)
            if bent is not None:
                d_scores = d_scores * (1.0 - bent * bent)
            d_query[:, :, rows] = _grouped(d_scores, k) * call.scale
            d_key += _grouped_transposed(d_scores, q, groups) * call.scale
        d_bias = None if d_bias is None else d_bias.to(bias.dtype)
        return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), d_bias, None


def _add_bias_gradient(total: Tensor, d_scores: Tensor, call: Call, rows: slice, keys: int) -> None:
    if call.kind is DenseBias:
        target = _rows_of(_four(total), rows)
        for axis in range(4):
            if target.shape[axis] == 1:
                d_scores = d_scores.sum(axis, keepdim=True)
        target += d_scores
        return
    distance = call.distances(rows, keys)
    if call.kind is LinearBias:
        total -= (d_scores * distance.abs()[:, None]).sum((0, 2, 3))
        return
    index = (distance - call.low).clamp(0, total.shape[1] - 1).expand(d_scores.shape[0], -1, -1)
    total.index_add_(1, index.reshape(-1), d_scores.transpose(0, 1).reshape(total.shape[0], -1))


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    check(inputs)
    mask, bias = inputs.mask, inputs.bias
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    offset = mask.offset
    if isinstance(offset, Tensor):
        offset = offset.to(torch.int64, copy=True)[:, None, None]
    elif offset is not None:
        offset = torch.tensor(offset)[None, None, None]
    terms = {}
    for name in ("key_lengths", "query_lengths", "query_segments", "key_segments"):
        if getattr(mask, name) is not None:
            terms[name] = getattr(mask, name).to(torch.int64, copy=True)
    if mask.key_visible is not None:
        terms["key_visible"] = mask.key_visible.clone()
    if mask.visible is not None:
        terms["visible"] = _four(mask.visible).clone()
    seed = int(torch.randint(2**62, ())) if inputs.dropout else 0
    kind = None if bias is None else type(bias)
    low = bias.low if isinstance(bias, DistanceBias) else None
    call = Call(
        inputs.scale, inputs.softcap, inputs.dropout, seed, left, right, offset, low, kind, terms, inputs.return_weights
    )
    added = None if bias is None else bias.slopes if isinstance(bias, LinearBias) else bias.values
    output, lse, weights = _Chunks.apply(inputs.query, inputs.key, inputs.value, added, call)
    return AttentionOutput(output, weights=weights, lse=lse if inputs.return_lse else None)
