"""Attention that keeps memory and tables between calls. Scores are computed in a workspace of the thread, forward and backward;
positions, masks by position and ALiBi biases are tables that equal calls share. `prepare` renders mask and bias once per stack.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from declaration import declared
from torch import Tensor
from torch.autograd.function import once_differentiable

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

TABLES = 24
"""Tables that are kept."""

BACKEND = declared(
    __name__,
    "A workspace per thread, and tables of positions and biases that equal calls share.",
    reference="https://arxiv.org/abs/1706.03762",
    prepare=f"{__name__}:prepare",
    dropout=True,
    weights="detached",
    deterministic_backward=True,
)
check = require_capabilities(BACKEND.name, BACKEND.capabilities)


class _Workspace(threading.local):
    """Memory for the scores, one block per name and dtype."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = 1
        for length in shape:
            size *= length
        block = self.blocks.get((name, dtype))
        if block is None or block.numel() < size:
            with torch.inference_mode(False):
                block = self.blocks[name, dtype] = torch.empty(size, dtype=dtype)
        return block[:size].view(shape)


class _Tables:
    """Tensors by the numbers that they follow from. They are never written to."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, ...], Tensor] = {}
        self.lock = threading.Lock()

    def get(self, name: tuple[Any, ...], make) -> Tensor:
        with self.lock:
            table = self.kept.get(name)
            if table is None:
                with torch.inference_mode(False), torch.no_grad():
                    table = make()
                while len(self.kept) >= TABLES:
                    self.kept.pop(next(iter(self.kept)))
                self.kept[name] = table
        return table


workspace, tables = _Workspace(), _Tables()


def _distance(offset: int | Tensor | None, queries: int, keys: int) -> Tensor:
    """Key minus position of the query, (B|1,Q,K)."""
    if isinstance(offset, Tensor):
        first = offset.to(torch.int64)[:, None, None]
        return torch.arange(keys) - (first + torch.arange(queries)[:, None])
    first = offset or 0
    return tables.get(
        ("distance", first, queries, keys),
        lambda: (torch.arange(keys) - torch.arange(first, first + queries)[:, None])[None],
    )


def _near(mask: Mask, queries: int, keys: int) -> Tensor | None:
    """Causal and window, (B|1,1,Q,K)."""
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    if left is None and right is None:
        return None
    distance = _distance(mask.offset, queries, keys)

    def render() -> Tensor:
        near = torch.ones_like(distance, dtype=torch.bool)
        if left is not None:
            near &= distance >= -left
        if right is not None:
            near &= distance <= right
        return near[:, None]

    if isinstance(mask.offset, Tensor):
        return render()
    return tables.get(("near", left, right, mask.offset, queries, keys), render)


def _sight(mask: Mask, queries: int, keys: int) -> Tensor | None:
    """True where a query sees a key, (B|1,H|1,Q|1,K|1); None if all see all."""
    sight = _near(mask, queries, keys)
    terms = []
    if mask.key_lengths is not None:
        terms.append((torch.arange(keys) < mask.key_lengths.to(torch.int64)[:, None])[:, None, None])
    if mask.query_lengths is not None:
        terms.append((torch.arange(queries) < mask.query_lengths.to(torch.int64)[:, None])[:, None, :, None])
    if mask.key_visible is not None:
        terms.append(mask.key_visible[:, None, None].clone())
    if mask.query_segments is not None and mask.key_segments is not None:
        query, key = mask.query_segments.to(torch.int64), mask.key_segments.to(torch.int64)
        terms.append((query[:, :, None] == key[:, None])[:, None])
    if mask.visible is not None:
        terms.append(mask.visible[(None,) * (4 - mask.visible.dim())].clone())
    for term in terms:
        sight = term if sight is None else sight & term
    return sight


def _added(bias: Bias | None, mask: Mask, shapes: Shapes) -> Tensor | None:
    """The bias in the type of accumulation, (B|1,H|1,Q|1,K|1), differentiable."""
    if bias is None:
        return None
    wide = torch.promote_types(shapes.dtype, torch.float32)
    if isinstance(bias, DenseBias):
        return bias.values[(None,) * (4 - bias.values.dim())].to(wide)
    distance = _distance(mask.offset, shapes.queries, shapes.keys)
    if isinstance(bias, LinearBias):
        slopes = bias.slopes
        if isinstance(mask.offset, Tensor) or (slopes.requires_grad and torch.is_grad_enabled()):
            return slopes.to(wide)[:, None, None] * -distance.abs()[:, None]
        name = ("alibi", tuple(slopes.tolist()), mask.offset, shapes.queries, shapes.keys, wide)
        return tables.get(name, lambda: slopes.to(wide)[:, None, None] * -distance.abs()[:, None])
    values = bias.values
    index = (distance - bias.low).clamp(0, values.shape[1] - 1)
    return values.to(wide).index_select(1, index.flatten()).view(-1, *index.shape).transpose(0, 1)


def prepare(mask: Mask, bias: Bias | None, shapes: Shapes, options: NoOptions) -> Prepared:
    """The mask and the bias as tensors, once for all layers of a stack."""
    sight = _sight(mask, shapes.queries, shapes.keys)
    return Prepared((sight, _added(bias, mask, shapes)), with_bias=bias is not None)


class _Kept(torch.autograd.Function):
    @staticmethod
    def scores(query: Tensor, key: Tensor, bias: Tensor | None, sight: Tensor | None, scale: float, softcap: float | None):
        """Scores (B,H,Q,K) in the workspace with -inf where hidden, the tanh of the cap, and which queries see a key."""
        batch, heads, queries, features = query.shape
        groups, keys = key.shape[1:3]
        scores = workspace.take("scores", (batch, heads, queries, keys), key.dtype)
        folded = (query.to(key.dtype) * scale).reshape(batch, groups, -1, features)
        torch.matmul(folded, key.mT, out=scores.view(batch, groups, -1, keys))
        bent, seen = None, None
        if softcap is not None:
            bent = torch.div(scores, softcap, out=workspace.take("bent", scores.shape, scores.dtype)).tanh_()
            torch.mul(bent, softcap, out=scores)
        if bias is not None:
            scores += bias
        if sight is not None:
            scores.masked_fill_(~sight, -torch.inf)
            seen = sight.any(-1, keepdim=True)
        return scores, bent, seen

    @staticmethod
    def forward(ctx, query, key, value, bias, sight, keep, scale: float, softcap: float | None, dropout: float, ask: bool):
        wide = torch.promote_types(query.dtype, torch.float32)
        batch, groups, keys, features = value.shape
        shares, _, seen = _Kept.scores(query, key.to(wide), bias, sight, scale, softcap)
        top = shares.amax(-1, keepdim=True)
        if seen is not None:
            top = torch.where(seen, top, 0.0)
        total = shares.sub_(top).exp_().sum(-1, keepdim=True)
        lse = top + torch.log(total)
        shares /= total
        if seen is not None:
            shares.masked_fill_(~seen, 0.0)
        weights = shares.to(query.dtype, copy=True) if ask else None
        if keep is not None:
            shares.mul_(keep).div_(1.0 - dropout)
        output = (shares.view(batch, groups, -1, keys) @ value.to(wide)).view(*query.shape[:3], features)
        ctx.save_for_backward(query, key, value, bias, lse)
        ctx.sight, ctx.keep, ctx.numbers = sight, keep, (scale, softcap, dropout)
        result = lse.squeeze(-1).to(torch.float32, copy=True)
        ctx.mark_non_differentiable(result, *([] if weights is None else [weights]))
        return output.to(query.dtype), result, weights

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, *_):
        query, key, value, bias, lse = ctx.saved_tensors
        scale, softcap, dropout = ctx.numbers
        wide = lse.dtype
        batch, groups, keys, features = value.shape
        k, v, g = key.to(wide), value.to(wide), grad.to(wide)
        shares, bent, seen = _Kept.scores(query, k, bias, ctx.sight, scale, softcap)
        if seen is not None:
            lse, g = torch.where(seen, lse, 0.0), torch.where(seen, g, 0.0)
        shares.sub_(lse).exp_()
        g = g.reshape(batch, groups, -1, features)
        slopes = workspace.take("slopes", shares.shape, wide)
        torch.matmul(g, v.mT, out=slopes.view(batch, groups, -1, keys))
        kept = shares
        if ctx.keep is not None:
            slopes.mul_(ctx.keep).div_(1.0 - dropout)
            kept = torch.mul(shares, ctx.keep, out=workspace.take("kept", shares.shape, wide)).div_(1.0 - dropout)
        d_value = kept.view(batch, groups, -1, keys).mT @ g
        slopes.sub_((slopes * shares).sum(-1, keepdim=True)).mul_(shares)
        d_bias = slopes.sum_to_size(bias.shape).clone() if bias is not None and ctx.needs_input_grad[3] else None
        if bent is not None:
            slopes.mul_(1.0 - bent * bent)
        rows = slopes.view(batch, groups, -1, keys)
        d_query = (rows @ k).view(query.shape) * scale
        d_key = rows.mT @ query.to(wide).reshape(batch, groups, -1, query.shape[3]) * scale
        gradients = (d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype), d_bias)
        return (*gradients, None, None, None, None, None, None)


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v: query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V)."""
    check(inputs)
    query, bias, prepared = inputs.query, inputs.bias, inputs.prepared
    shapes = Shapes(*query.shape[:3], inputs.key.shape[2], query.dtype, query.device)
    if prepared is None:
        prepared = prepare(inputs.mask, bias, shapes, options)
    sight, added = prepared.payload
    if bias is not None and not prepared.with_bias:
        added = _added(bias, inputs.mask, shapes)
    keep = None
    if inputs.dropout:
        keep = torch.empty(*query.shape[:3], shapes.keys).bernoulli_(1.0 - inputs.dropout).to(torch.bool)
    output, lse, weights = _Kept.apply(
        query, inputs.key, inputs.value, added, sight, keep, inputs.scale, inputs.softcap, inputs.dropout, inputs.return_weights
    )
    return AttentionOutput(output, weights=weights, lse=lse if inputs.return_lse else None)
