"""Attention row by row of the batch, in memory that is kept between calls.

    workspace    the scores of a batch row, one buffer for each thread, that grows with the calls
    tables       distances and bands (causal, window) of the last calls, by their sizes and positions
    slopes       those of a linear bias in the type of accumulation, as long as they do not change
    draws        dropout by a hash of (seed, b, h, i, j): nothing has to be kept for the backward pass

Each batch row is computed alone, so that its results do not depend on the others, bit for bit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import torch
from declaration import declared
from torch import Tensor
from torch.autograd.function import once_differentiable

from tfkit.plugin import (
    AttentionInputs,
    AttentionOutput,
    Bias,
    LinearBias,
    Mask,
    NoOptions,
    Numerics,
    Prepared,
    Shapes,
    require_capabilities,
)

TABLES = 12
"""So many tables are kept."""


BACKEND = declared(
    __name__,
    "Batch row by batch row, with memory that is kept between calls.",
    prepare=f"{__name__}:prepare",
    bias_kinds=frozenset({"linear", "distance"}),
    bias_gradient=frozenset({"linear", "distance"}),
    dropout=True,
    deterministic_backward=True,
    batch_invariant=True,
    numerics=Numerics(probabilities="accumulation", tf32=True),
)
check = require_capabilities(BACKEND.name, BACKEND.capabilities)


class _Kept(threading.local):
    """What a thread keeps between calls."""

    def __init__(self) -> None:
        self.memory: dict[torch.dtype, Tensor] = {}
        self.tables: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()
        self.slopes: tuple[Tensor, Tensor] | None = None


_kept = _Kept()


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v."""
    check(inputs)
    B, _, Q, _ = inputs.query.shape
    K, bias = inputs.key.shape[2], inputs.bias
    if inputs.prepared is None:  # noqa: SIM108, a fault changes one side
        shown = _shown(inputs.mask, B, Q, K)
    else:
        shown = inputs.prepared.payload
    leaf = None if bias is None else bias.slopes if isinstance(bias, LinearBias) else bias.values
    seed = int(torch.randint(2**62, ()).item()) if inputs.dropout > 0.0 else 0
    output, lse = _Rows.apply(inputs.query, inputs.key, inputs.value, leaf, inputs, shown, seed)
    return AttentionOutput(output, lse=lse if inputs.return_lse else None)


def prepare(mask: Mask, bias: Bias | None, shapes: Shapes, options: NoOptions) -> Prepared:
    """The mask as one tensor, for all layers."""
    return Prepared(_shown(mask, shapes.batch, shapes.queries, shapes.keys))


class _Call:
    """The settings of a call, without its tensors."""

    def __init__(self, inputs: AttentionInputs, seed: int) -> None:
        self.scale, self.softcap, self.dropout, self.seed = inputs.scale, inputs.softcap, inputs.dropout, seed
        self.low = None if inputs.bias is None or isinstance(inputs.bias, LinearBias) else inputs.bias.low
        offset, B = inputs.mask.offset, inputs.query.shape[0]
        self.starts = offset.tolist() if isinstance(offset, Tensor) else [offset or 0] * B


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, inputs: Any, shown: Tensor,
                seed: int) -> Any:  # fmt: skip
        B, H, Q, _ = query.shape
        call, wide = _Call(inputs, seed), torch.promote_types(query.dtype, torch.float32)
        output = query.new_empty(B, H, Q, value.shape[3])
        lse = torch.empty(B, H, Q, 1, dtype=wide)
        for b in range(B):
            scores, _ = _scores(query[b], key[b], bias, call, b)
            seen = _hide(scores, shown, b)
            highest = torch.where(seen, scores.amax(-1, keepdim=True), 0.0)
            powers = scores.sub_(highest).exp_()
            total = powers.sum(-1, keepdim=True)
            lse[b] = torch.where(seen, highest + total.log(), -torch.inf)
            powers.div_(torch.where(seen, total, 1.0))
            if call.dropout > 0.0:
                powers.mul_(_factors(call, b, H, Q, powers.shape[2], wide))
            output[b] = _product(powers, value[b].to(wide)).to(query.dtype)
        ctx.save_for_backward(query, key, value, bias, output, lse, shown)
        ctx.call = call
        public = lse.squeeze(-1).float()
        ctx.mark_non_differentiable(public)
        return output, public

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, _: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return (*_backward(ctx, grad_output), None, None, None)


def _backward(ctx: Any, grad_output: Tensor) -> Any:
    query, key, value, bias, output, lse, shown = ctx.saved_tensors
    call, wide = ctx.call, lse.dtype
    (B, H, Q, _), (G, K, _) = query.shape, value.shape[1:]
    grads = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (query, key, value)]
    grad_bias = None if bias is None else torch.zeros(bias.shape, dtype=wide)
    for b in range(B):
        scores, capped = _scores(query[b], key[b], bias, call, b)
        seen = _hide(scores, shown, b)
        chances = scores.sub_(torch.where(seen, lse[b], 0.0)).exp_()
        sent = torch.where(seen, _own(grad_output[b].to(wide)), 0.0)
        grad_chances = _product(sent, value[b].to(wide).mT)
        dropped = chances
        if call.dropout > 0.0:
            factors = _factors(call, b, H, Q, K, wide)
            dropped, grad_chances = chances * factors, grad_chances * factors
        grads[2][b] = _grouped(dropped.mT @ sent, G).to(value.dtype)
        grad_scores = chances * (grad_chances - (sent * output[b].to(wide)).sum(-1, keepdim=True))
        if grad_bias is not None and ctx.needs_input_grad[3]:
            _add_bias_gradient(grad_bias, grad_scores, call, b)
        if capped is not None:
            grad_scores = grad_scores * (1.0 - (capped / call.softcap) ** 2)
        grad_scores = grad_scores * call.scale
        grads[0][b] = _product(grad_scores, key[b].to(wide)).to(query.dtype)
        grads[1][b] = _grouped(grad_scores.mT @ _own(query[b].to(wide)), G).to(key.dtype)
    return *grads, None if grad_bias is None else grad_bias.to(bias.dtype)


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, call: _Call, b: int) -> tuple[Tensor, Tensor | None]:
    """The scores (H,Q,K) of a batch row, in the workspace, and those before the bias where a softcap needs them."""
    (H, Q, D), (G, K) = query.shape, key.shape[:2]
    wide = torch.promote_types(query.dtype, torch.float32)
    if query.dtype == wide:  # other types are copied below
        query, key = _own(query), _own(key)
    scores = _workspace(H * Q * K, wide).view(H, Q, K)
    torch.matmul(query.to(wide).reshape(G, H // G * Q, D), key.to(wide).mT, out=scores.view(G, H // G * Q, K))
    scores.mul_(call.scale)
    capped = None
    if call.softcap is not None:
        scores.div_(call.softcap).tanh_().mul_(call.softcap)
        capped = scores.clone()
    if bias is not None:
        distance = _distances(Q, K, call.starts[b])
        if call.low is None:
            scores.sub_(_slopes(bias, wide)[:, None, None] * distance.abs())
        else:
            scores.add_(bias[:, (distance - call.low).clamp(0, bias.shape[1] - 1)])
    return scores, capped


def _hide(scores: Tensor, shown: Tensor, b: int) -> Tensor:
    """Sets the scores of hidden keys to -inf; gives the queries that see a key."""
    row = shown[b if shown.shape[0] > 1 else 0]
    scores.masked_fill_(~row, -torch.inf)
    return row.any(-1, keepdim=True)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """(H,Q,*) by (G,*,*): query heads that share a key head are rows of one product."""
    H, Q, G = *left.shape[:2], right.shape[0]
    return (left.reshape(G, H // G * Q, -1) @ _own(right)).view(H, Q, -1)


def _own(tensor: Tensor) -> Tensor:
    """In memory of its own: a product of torch has other bits at an address that is no multiple of 64 bytes."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _grouped(gradient: Tensor, G: int) -> Tensor:
    return gradient.view(G, -1, *gradient.shape[1:]).sum(1)


def _workspace(size: int, dtype: torch.dtype) -> Tensor:
    memory = _kept.memory.get(dtype)
    if memory is None or memory.numel() < size:
        with torch.inference_mode(False):
            memory = _kept.memory[dtype] = torch.empty(size, dtype=dtype)
    return memory[:size]


def _table(key: tuple[Any, ...], make: Any) -> Tensor:
    tables = _kept.tables
    if key not in tables:
        tables[key] = make()
        if len(tables) > TABLES:
            tables.popitem(last=False)
    return tables[key]


def _distances(Q: int, K: int, start: int) -> Tensor:
    """j - (start + i): (Q,K)"""
    return _table(("distances", Q, K, start), lambda: torch.arange(K) - torch.arange(start, start + Q)[:, None])


def _band(Q: int, K: int, start: int, left: int | None, right: int | None) -> Tensor:
    def make() -> Tensor:
        distance = torch.arange(K) - torch.arange(start, start + Q)[:, None]
        shown = torch.ones(Q, K, dtype=torch.bool)
        if left is not None:
            shown &= distance >= -left
        if right is not None:
            shown &= distance <= right
        return shown

    return _table(("band", Q, K, start, left, right), make)


def _slopes(slopes: Tensor, wide: torch.dtype) -> Tensor:
    """The slopes in the type of accumulation."""
    slopes = slopes.detach()
    kept = _kept.slopes
    if kept is None or kept[1].dtype != wide or not torch.equal(kept[0], slopes):
        kept = _kept.slopes = (slopes.clone(), slopes.to(wide, copy=True))
    return kept[1]


def _shown(mask: Mask, B: int, Q: int, K: int) -> Tensor:
    """Every term of a mask as one tensor (B|1,H|1,Q|1,K)."""
    shown = torch.ones(1, 1, 1, K, dtype=torch.bool)
    if mask.causal or mask.window is not None:
        left, right = mask.window or (None, None)
        if mask.causal:
            right = 0 if right is None else min(right, 0)
        starts = mask.offset.tolist() if isinstance(mask.offset, Tensor) else [mask.offset]
        shown = shown & torch.stack([_band(Q, K, start, left, right) for start in starts])[:, None]
    if mask.key_lengths is not None:
        shown = shown & (torch.arange(K) < mask.key_lengths[:, None])[:, None, None]
    if mask.query_lengths is not None:
        shown = shown & (torch.arange(Q) < mask.query_lengths[:, None])[:, None, :, None]
    if mask.key_visible is not None:
        shown = shown & mask.key_visible[:, None, None]
    if mask.query_segments is not None and mask.key_segments is not None:
        shown = shown & (mask.query_segments[:, :, None] == mask.key_segments[:, None])[:, None]
    if mask.visible is not None:
        shown = shown & mask.visible[(None,) * (4 - mask.visible.dim())]
    return shown


def _factors(call: _Call, b: int, H: int, Q: int, K: int, dtype: torch.dtype) -> Tensor:
    """The factors of the dropout draw of a batch row, 0 or 1/(1-p): (H,Q,K)."""
    place = torch.arange(H * Q * K) + b * (H * Q * K)
    mixed = _mix(_mix(place) ^ call.seed)
    coins = (mixed & (2**53 - 1)).double() * 2.0**-53
    return ((coins >= call.dropout).to(dtype) / (1.0 - call.dropout)).view(H, Q, K)


def _mix(number: Tensor) -> Tensor:
    """The finaliser of splitmix64."""
    number = number + -7046029254386353131
    number = (number ^ ((number >> 30) & (2**34 - 1))) * -4658895280553007687
    number = (number ^ ((number >> 27) & (2**37 - 1))) * -7723592293110705685
    return number ^ ((number >> 31) & (2**33 - 1))


def _add_bias_gradient(total: Tensor, grad_scores: Tensor, call: _Call, b: int) -> None:
    distance = _distances(*grad_scores.shape[1:], call.starts[b])
    if call.low is None:
        total -= (grad_scores * distance.abs()).sum((1, 2))
    else:
        index = (distance - call.low).clamp(0, total.shape[1] - 1).flatten()
        total.index_add_(1, index, grad_scores.flatten(1))
