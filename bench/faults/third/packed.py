"""Attention of packed heads: each pair of batch row and key/value head is one matrix, the query heads of a group are its rows.

Positions, windows and lengths become one interval of keys per query; the other terms of a mask are tensors. With gradients,
chunks of queries go through autograd. Without gradients the scores of a chunk lie in memory that a thread keeps between calls,
and one query (decoding) reads only the keys of its interval.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import torch
from declaration import declared
from torch import Tensor

from tfkit.plugin import (
    AttentionInputs,
    AttentionOutput,
    Bias,
    DenseBias,
    LinearBias,
    Mask,
    NoOptions,
    Prepared,
    Shapes,
    require_capabilities,
)

CHUNK = 56
"""Queries of one chunk."""
COINS = 2**31
"""Numbers that a coin of dropout may have."""

BACKEND = declared(
    __name__,
    "Packed heads in chunks of queries, with a path for decoding and memory that is kept.",
    reference="https://arxiv.org/abs/2305.13245",
    prepare=f"{__name__}:prepare",
    dropout=True,
    weights="differentiable",
    scores=frozenset({"*"}),
    double_backward=True,
    deterministic_backward=True,
)
check = require_capabilities(BACKEND.name, BACKEND.capabilities)


class _Memory(threading.local):
    """One block per dtype and name."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = torch.Size(shape).numel()
        block = self.blocks.get((name, dtype))
        if block is None or block.numel() < size:
            with torch.inference_mode(False):
                block = self.blocks[name, dtype] = torch.empty(size, dtype=dtype)
        return block[:size].view(shape)


memory = _Memory()


def _four(tensor: Tensor) -> Tensor:
    return tensor[(None,) * (4 - tensor.dim())]


def _some(tensor: Tensor, rows: slice, keys: slice) -> Tensor:
    """Queries and keys of (B|1,H|1,Q|1,K|1); an axis of size 1 speaks of all."""
    tensor = tensor if tensor.shape[2] == 1 else tensor[:, :, rows]
    return tensor if tensor.shape[3] == 1 else tensor[..., keys]


@dataclass(frozen=True)
class Sight:
    """Query i sees the keys from low[i] to high[i] that every term shows."""

    low: Tensor | None  # (B|1,1,Q,1)
    high: Tensor | None
    terms: tuple[Tensor, ...]  # (B|1,H|1,Q|1,K|1)

    def part(self, rows: slice, keys: slice) -> Tensor | None:
        """True where a query sees a key, (B|1,H|1,q|1,k|1); None if all see all."""
        sight = None
        places = torch.arange(keys.start, keys.stop)
        for term in (
            None if self.low is None else places >= self.low[:, :, rows],
            None if self.high is None else places < self.high[:, :, rows],
            *(_some(term, rows, keys) for term in self.terms),
        ):
            if term is not None:
                sight = term if sight is None else sight & term
        return sight

    def keys(self, keys: int) -> slice:
        """The keys of all intervals, at least one."""
        begin = 0 if self.low is None else int(self.low.min())
        end = keys if self.high is None else int(self.high.max())
        begin = min(max(begin, 0), keys - 1)
        return slice(begin, max(min(end, keys), begin + 1))


def _positions(offset: int | Tensor | None, queries: int) -> Tensor:
    """(B|1,1,Q,1)."""
    first = offset.to(torch.int64) if isinstance(offset, Tensor) else torch.tensor([offset or 0])
    return first[:, None, None, None] + torch.arange(queries)[:, None]


def _sight(mask: Mask, shapes: Shapes) -> Sight:
    low, high, terms = None, None, []
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    if left is not None:
        low = _positions(mask.offset, shapes.queries) - left
    if right is not None:
        high = _positions(mask.offset, shapes.queries) + (right + 1)
    if mask.key_lengths is not None:
        stop = mask.key_lengths.to(torch.int64)[:, None, None, None].expand(-1, 1, shapes.queries, 1)
        high = stop if high is None else torch.minimum(high, stop)
    if mask.query_lengths is not None:
        terms.append(torch.arange(shapes.queries)[:, None] < mask.query_lengths.to(torch.int64)[:, None, None, None])
    if mask.key_visible is not None:
        terms.append(mask.key_visible[:, None, None].clone())
    if mask.query_segments is not None and mask.key_segments is not None:
        query, key = mask.query_segments.to(torch.int64), mask.key_segments.to(torch.int64)
        terms.append((query[:, :, None] == key[:, None])[:, None])
    if mask.visible is not None:
        terms.append(_four(mask.visible).clone())
    return Sight(low, None if high is None else high.clone(), tuple(terms))


def prepare(mask: Mask, bias: Bias | None, shapes: Shapes, options: NoOptions) -> Prepared:
    """The mask once for all layers of a stack."""
    return Prepared(_sight(mask, shapes))


def _bias(bias: Bias | None, offset: int | Tensor | None, rows: slice, keys: slice, wide: torch.dtype) -> Tensor | None:
    """The bias of a chunk, (B|1,H|1,q|1,k|1)."""
    if bias is None:
        return None
    if isinstance(bias, DenseBias):
        return _some(_four(bias.values), rows, keys).to(wide)
    distance = torch.arange(keys.start, keys.stop) - _positions(offset, rows.stop)[:, :, rows]
    if isinstance(bias, LinearBias):
        return bias.slopes.to(wide)[:, None, None] * -distance.abs()
    places = (distance[:, 0] - bias.low).clamp(0, bias.values.shape[1] - 1)
    return bias.values.to(wide).index_select(1, places.flatten()).view(-1, *places.shape).transpose(0, 1)


def _factors(inputs: AttentionInputs, keys: int) -> Tensor | None:
    """The factors of dropout (B,H,Q,K) in the type of accumulation."""
    if not inputs.dropout:
        return None
    wide = torch.promote_types(inputs.query.dtype, torch.float32)
    coins = torch.randint(COINS, (*inputs.query.shape[:3], keys), dtype=torch.int32)
    return (coins >= round(inputs.dropout * COINS)).to(wide) / (1.0 - inputs.dropout)


def _packed(tensor: Tensor, groups: int) -> Tensor:
    """(B,H,q,N) -> (B G, H/G q, N)."""
    return tensor.reshape(tensor.shape[0] * groups, -1, tensor.shape[3])


def _widened(inputs: AttentionInputs, wide: torch.dtype) -> AttentionInputs:
    """The call in the type of accumulation, so that gradients of all chunks are summed in it. A score function keeps its
    types."""
    bias, value = inputs.bias, inputs.value.to(wide)
    if isinstance(bias, LinearBias):
        bias = LinearBias(bias.slopes.to(wide))
    elif bias is not None:
        bias = replace(bias, values=bias.values.to(wide))
    if inputs.score is not None:
        return replace(inputs, value=value, bias=bias)
    return replace(inputs, query=inputs.query.to(wide), key=inputs.key.to(wide), value=value, bias=bias)


def _chunk(inputs: AttentionInputs, sight: Sight, factors: Tensor | None, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Output, weights before dropout and log-sum-exp of a chunk, for autograd."""
    query, (groups, keys), wide = inputs.query[:, :, rows], inputs.key.shape[1:3], inputs.value.dtype
    whole, shape = slice(0, keys), (*query.shape[:3], keys)
    if inputs.score is None:
        scores = (_packed(query * inputs.scale, groups) @ _packed(inputs.key, groups).mT).view(shape)
    else:
        scores = inputs.score(query, inputs.key).to(wide)
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    added, seen = _bias(inputs.bias, inputs.mask.offset, rows, whole, wide), sight.part(rows, whole)
    if added is not None:
        scores = scores + added
    there = None
    if seen is not None:
        there = seen.any(-1, keepdim=True)
        scores = scores.masked_fill(~(seen | ~there), -torch.inf)
    weights = torch.softmax(scores, -1)
    kept = weights if factors is None else weights * factors[:, :, rows]
    output = (_packed(kept, groups) @ _packed(inputs.value, groups)).view(*query.shape[:3], -1)
    lse = torch.logsumexp(scores, -1, keepdim=True)
    if there is None:
        return output, weights, lse
    return torch.where(there, output, 0.0), torch.where(there, weights, 0.0), torch.where(there, lse, -torch.inf)


def _kept_chunk(inputs: AttentionInputs, sight: Sight, factors: Tensor | None, rows: slice, keys: slice, output: Tensor,
                weights: Tensor | None, lse: Tensor) -> None:  # fmt: skip
    """The same without gradients, written to `output`, `weights` and `lse`; scores are in memory that is kept."""
    (batch, heads, queries, _), groups, wide = inputs.query[:, :, rows].shape, inputs.key.shape[1], lse.dtype
    scores = memory.take("scores", (batch, heads, queries, keys.stop - keys.start), wide)
    query = _packed(inputs.query[:, :, rows].to(wide) * inputs.scale, groups)
    torch.bmm(query, _packed(inputs.key[:, :, keys].to(wide), groups).mT, out=_packed(scores, groups))
    if inputs.softcap is not None:
        scores.div_(inputs.softcap).tanh_().mul_(inputs.softcap)
    added, seen = _bias(inputs.bias, inputs.mask.offset, rows, keys, wide), sight.part(rows, keys)
    if added is not None:
        scores.add_(added)
    there = None
    if seen is not None:
        there = seen.any(-1, keepdim=True)
        scores.masked_fill_(~(seen | ~there), -torch.inf)
    top = scores.amax(-1, keepdim=True)
    total = scores.sub_(top).exp_().sum(-1, keepdim=True)
    scores.div_(total)
    lse[:, :, rows] = (top + torch.log(total)) if there is None else torch.where(there, top + torch.log(total), -torch.inf)
    if there is not None:
        scores.masked_fill_(~there, 0.0)
    if weights is not None:
        weights[:, :, rows, keys] = scores.to(weights.dtype)
    if factors is not None:
        scores.mul_(factors[:, :, rows, keys])
    product = _packed(scores, groups) @ _packed(inputs.value[:, :, keys].to(wide), groups)
    output[:, :, rows] = product.view(batch, heads, queries, -1)


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    check(inputs)
    query, bias, keys = inputs.query, inputs.bias, inputs.key.shape[2]
    shapes = Shapes(*query.shape[:3], keys, query.dtype, query.device)
    sight = inputs.prepared.payload if inputs.prepared is not None else _sight(inputs.mask, shapes)
    leaves = [query, inputs.key, inputs.value, *(vars(bias).values() if bias is not None else ())]
    learns = torch.is_grad_enabled() and any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)
    wide = torch.promote_types(query.dtype, torch.float32)
    chunks = [slice(start, min(start + CHUNK, shapes.queries)) for start in range(0, shapes.queries, CHUNK)]
    with torch.autocast("cpu", enabled=False):
        factors = _factors(inputs, keys)
        if learns or inputs.score is not None:
            call = _widened(inputs, wide)
            chunks = chunks if inputs.score is None else [slice(0, shapes.queries)]
            parts = zip(*(_chunk(call, sight, factors, rows) for rows in chunks), strict=True)
            output, weights, lse = (torch.cat(part, 2) for part in parts)
        else:
            output = torch.empty(*query.shape[:3], inputs.value.shape[3], dtype=query.dtype)
            weights = torch.zeros(*query.shape[:3], keys, dtype=query.dtype) if inputs.return_weights else None
            lse = torch.empty(*query.shape[:3], 1, dtype=wide)
            some = sight.keys(keys) if shapes.queries == 1 else slice(0, keys)
            for rows in chunks:
                _kept_chunk(inputs, sight, factors, rows, some, output, weights, lse)
    return AttentionOutput(
        output.to(query.dtype),
        weights=weights.to(query.dtype) if inputs.return_weights else None,
        lse=lse.squeeze(-1).to(torch.float32) if inputs.return_lse else None,
    )
