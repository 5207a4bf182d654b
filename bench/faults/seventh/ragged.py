"""Attention of ragged blocks: each block of queries of a batch row gathers the keys that it sees, of every head, and computes
as if there were no others. The gathered keys are halved into leaves, whose partial results are merged in pairs, as in a tree.

    leaf:   m = max s_j     l = sum e^(s_j - m)     a = sum e^(s_j - m) v_j
    merge:  m = max(m1, m2)     l = l1 e^(m1 - m) + l2 e^(m2 - m)     a = a1 e^(m1 - m) + a2 e^(m2 - m)

The query heads of a group are rows of one product. Gathered keys, transposed, and values lie in memory that a thread keeps
between calls; the backward pass gathers them again. Each block has a generator for its dropout.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import torch
from declaration import declared
from torch import Tensor
from torch.autograd.function import once_differentiable

from tfkit.plugin import AttentionInputs, AttentionOutput, DistanceBias, LinearBias, Mask, NoOptions, require_capabilities

BLOCK, LEAF, STEP = 64, 48, 16
"""Queries of a block, keys of a leaf at most, a divisor of where leaves begin."""
BACKEND = declared(__name__, "Blocks of queries with the keys that they see, merged as a tree.", dropout=True)
check = require_capabilities(BACKEND.name, BACKEND.capabilities)
Part = tuple[Tensor, Tensor, Tensor]


class _Memory(threading.local):
    def __init__(self) -> None:
        self.flat: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, dtype: torch.dtype, *shape: int) -> Tensor:
        size, flat = math.prod(shape), self.flat.get((name, dtype))
        if flat is None or flat.numel() < size:
            with torch.inference_mode(False):
                flat = self.flat[name, dtype] = torch.empty(size, dtype=dtype)
        return flat[:size].view(shape)


memory = _Memory()


def leaves(start: int, stop: int) -> list[slice]:
    if stop - start <= LEAF:
        return [slice(start, stop)]
    middle = (start + stop) // 2 // STEP * STEP
    return leaves(start, middle) + leaves(middle, stop)


def merge(one: Part, other: Part) -> Part:
    top = torch.maximum(one[0], other[0])
    level = torch.where(top == -torch.inf, 0.0, top)
    left, right = torch.exp(one[0] - level), torch.exp(other[0] - level)
    return top, one[1] * left + other[1] * right, one[2] * left + other[2] * right


def part_of(tensor: Tensor, row: int, queries: Tensor, keys: Tensor) -> Tensor:
    """(H|1,q|1,k|1) of up to four axes (B|1,H|1,Q|1,K|1); an axis of size 1 speaks of every place."""
    tensor = tensor[(None,) * (4 - tensor.dim())]
    tensor = tensor[row if tensor.shape[0] > 1 else 0]
    tensor = tensor if tensor.shape[1] == 1 else tensor.index_select(1, queries)
    return tensor if tensor.shape[2] == 1 else tensor.index_select(2, keys)


@dataclass
class Block:
    """Queries of a batch row and the keys that one of them sees, by their numbers."""

    row: int
    queries: Tensor  # (q,) without holes
    keys: Tensor  # (n,) ascending
    sight: Tensor  # (H|1,q,n)
    distance: Tensor  # (q,n), key minus position of the query
    seed: int


@dataclass
class Call:
    sizes: tuple[int, int, int, int]  # B, H, Q, K
    bias: type | None
    low: int
    numbers: tuple[float, float | None, float]  # scale, softcap, dropout
    blocks: list[Block]

    def gather(self, block: Block, query: Tensor, key: Tensor, value: Tensor, wide: torch.dtype) -> Part:
        """Scaled queries (G,H/G q,D), transposed keys (G,D,n), values (G,n,V)."""
        groups, n = key.shape[1], len(block.keys)
        q = query[block.row].index_select(1, block.queries).to(wide) * self.numbers[0]
        k = memory.take("key", wide, groups, key.shape[3], n)
        v = memory.take("value", wide, groups, n, value.shape[3])
        k.copy_(key[block.row].index_select(1, block.keys).mT)
        v.copy_(value[block.row].index_select(1, block.keys))
        return q.reshape(groups, -1, query.shape[3]), k, v

    def coins(self, block: Block, wide: torch.dtype) -> Tensor:
        """The factors of dropout, (H,q,n), or one."""
        dropout = self.numbers[2]
        if not dropout:
            return torch.ones(1, 1, 1, dtype=wide).expand(1, 1, len(block.keys))
        generator = torch.Generator().manual_seed(block.seed)
        drawn = torch.rand((self.sizes[1], BLOCK, self.sizes[3]), generator=generator)[:, : len(block.queries)]
        return (drawn.index_select(2, block.keys) >= dropout).to(wide) / (1.0 - dropout)

    def scores(self, block: Block, q: Tensor, k: Tensor, added: Tensor | None, leaf: slice) -> tuple[Tensor, Tensor | None]:
        """Scores of a leaf (H,q,k) with -inf where hidden, and the tanh of the cap."""
        softcap, bent = self.numbers[1], None
        scores = (q @ k[..., leaf]).view(self.sizes[1], len(block.queries), -1)
        if softcap is not None:
            bent = torch.tanh(scores / softcap)
            scores = softcap * bent
        scores = scores if added is None else scores + added
        return scores.masked_fill(~block.sight[..., leaf], -torch.inf), bent

    def added(self, block: Block, values: Tensor | None, leaf: slice) -> Tensor | None:
        """The bias of a leaf, (H|1,q|1,k|1)."""
        distance = block.distance[:, leaf]
        if values is None or self.bias is None:
            return None
        if self.bias is LinearBias:
            return -values[:, None, None] * distance.abs()
        if self.bias is DistanceBias:
            return values[:, (distance - self.low).clamp(0, values.shape[1] - 1)]
        return part_of(values, block.row, block.queries, block.keys[leaf])


class _Ragged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, values, call: Call):
        wide, (groups, features) = torch.promote_types(query.dtype, torch.float32), value.shape[1::2]
        output = torch.zeros(*query.shape[:3], features, dtype=wide)
        lse = torch.full((*query.shape[:3], 1), -torch.inf, dtype=wide)
        bias = None if values is None else values.to(wide)
        for block in call.blocks:
            q, k, v = call.gather(block, query, key, value, wide)
            coins, seen, parts = call.coins(block, wide), block.sight.any(-1, keepdim=True), []
            for leaf in leaves(0, len(block.keys)):
                scores, _ = call.scores(block, q, k, call.added(block, bias, leaf), leaf)
                top = scores.amax(-1, keepdim=True)
                shares = torch.exp(scores - torch.where(top == -torch.inf, 0.0, top))
                product = (shares * coins[..., leaf]).view(groups, -1, shares.shape[2]) @ v[:, leaf]
                parts.append((top, shares.sum(-1, keepdim=True), product.view(*shares.shape[:2], features)))
            while len(parts) > 1:
                paired = [merge(one, other) for one, other in zip(parts[::2], parts[1::2], strict=False)]
                parts = paired + parts[2 * len(paired) :]
            top, total, product = parts[0]
            output[block.row].index_copy_(1, block.queries, torch.where(seen, product / total, 0.0))
            lse[block.row].index_copy_(1, block.queries, torch.where(seen, top + torch.log(total), -torch.inf))
        ctx.save_for_backward(query, key, value, values, output, lse)
        ctx.call = call
        result = lse.squeeze(-1).to(torch.float32, copy=True)
        ctx.mark_non_differentiable(result)
        return output.to(query.dtype, copy=True), result

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    @once_differentiable
    def backward(ctx, grad, _):
        query, key, value, values, output, lse = ctx.saved_tensors
        call, wide, (groups, features) = ctx.call, lse.dtype, value.shape[1::2]
        d_query, d_key, d_value = (torch.zeros(tensor.shape, dtype=wide) for tensor in (query, key, value))
        bias = None if values is None else values.detach().to(wide).requires_grad_(ctx.needs_input_grad[3])
        d_bias = torch.zeros_like(bias, requires_grad=False) if ctx.needs_input_grad[3] else None
        for block in call.blocks:
            q, k, v = call.gather(block, query, key, value, wide)
            coins, seen = call.coins(block, wide), block.sight.any(-1, keepdim=True)
            g, out, level = (each[block.row].index_select(1, block.queries).to(wide) for each in (grad, output, lse))
            g, level = torch.where(seen, g, 0.0), torch.where(seen, level, 0.0)
            delta, folded, d_q = (g * out).sum(-1, keepdim=True), g.reshape(groups, -1, features), torch.zeros_like(q)
            for leaf in leaves(0, len(block.keys)):
                with torch.enable_grad():
                    added = call.added(block, bias, leaf)
                scores, bent = call.scores(block, q, k, None if added is None else added.detach(), leaf)
                shares = torch.exp(scores - level)
                dropped = (shares * coins[..., leaf]).view(groups, -1, shares.shape[2])
                d_value[block.row].index_add_(1, block.keys[leaf], dropped.mT @ folded)
                d_shares = (folded @ v[:, leaf].mT).view(shares.shape) * coins[..., leaf]
                d_scores = shares * (d_shares - delta)
                if d_bias is not None:
                    d_bias += torch.autograd.grad(added, bias, d_scores.sum_to_size(added.shape))[0]
                if bent is not None:
                    d_scores = d_scores * (1.0 - bent * bent)
                flat = d_scores.view(groups, -1, shares.shape[2])
                d_q += flat @ k[..., leaf].mT
                d_key[block.row].index_add_(1, block.keys[leaf], flat.mT @ q)
            d_q = d_q.view(*shares.shape[:2], -1) * call.numbers[0]
            d_query[block.row].index_copy_(1, block.queries, d_q)
        d_bias = None if d_bias is None else d_bias.to(values.dtype)
        return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), d_bias, None


def blocks_of(mask: Mask, sizes: tuple[int, int, int, int], seed: int) -> list[Block]:
    """The blocks with a key to see. Positions and lengths bound the keys, the other terms hide some of these."""
    blocks, (batch, _, queries, keys), (left, right) = [], sizes, mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    for row in range(batch):
        offset = int(mask.offset[row]) if isinstance(mask.offset, Tensor) else mask.offset or 0
        there = queries if mask.query_lengths is None else min(queries, int(mask.query_lengths[row]))
        limit = keys if mask.key_lengths is None else min(keys, int(mask.key_lengths[row]))
        for start in range(0, there, BLOCK):
            stop = min(start + BLOCK, there)
            begin = 0 if left is None else max(0, offset + start - left)
            end = limit if right is None else min(limit, offset + stop + right)
            if end <= begin:
                continue
            q, k = torch.arange(start, stop), torch.arange(begin, end)
            distance = k - (q[:, None] + offset)
            sight = torch.ones(1, len(q), len(k), dtype=torch.bool)
            if left is not None:
                sight = sight & (distance >= -left)
            if right is not None:
                sight = sight & (distance <= right)
            if mask.key_visible is not None:
                sight = sight & mask.key_visible[row, k]
            if mask.query_segments is not None and mask.key_segments is not None:
                sight = sight & (mask.query_segments[row, q].long()[:, None] == mask.key_segments[row, k].long())
            if mask.visible is not None:
                sight = sight & part_of(mask.visible, row, q, k)
            near = sight.any(0).any(0).nonzero()[:, 0]
            if len(near):
                number = seed + row * -(-queries // BLOCK) + start // BLOCK
                blocks.append(Block(row, q, k[near], sight[..., near], distance[:, near], number))
    return blocks


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    check(inputs)
    mask, bias, sizes = inputs.mask, inputs.bias, (*inputs.query.shape[:3], inputs.key.shape[2])
    blocks = blocks_of(mask, sizes, int(torch.randint(2**62, ())) if inputs.dropout else 0)
    low = bias.low if isinstance(bias, DistanceBias) else 0
    call = Call(sizes, None if bias is None else type(bias), low, (inputs.scale, inputs.softcap, inputs.dropout), blocks)
    values = None if bias is None else bias.slopes if isinstance(bias, LinearBias) else bias.values
    with torch.autocast("cpu", enabled=False):
        output, lse = _Ragged.apply(inputs.query, inputs.key, inputs.value, values, call)
    return AttentionOutput(output, lse=lse if inputs.return_lse else None)
