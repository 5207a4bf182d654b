"""Attention with the keys in parts that are merged by their log-sum-exps (flash-decoding).

    part s     m_s = max S,  l_s = sum e^(S - m_s),  o_s = sum e^(S - m_s) v / l_s,  lse_s = m_s + ln l_s
    merge      lse = ln sum_s e^(lse_s),  O = sum_s e^(lse_s - lse) o_s

The query heads that share a key head are rows of one product. Parts that no query sees are left out. The backward pass is
autograd's, so that second derivatives are right too.
"""

from __future__ import annotations

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
    Numerics,
    require_capabilities,
)

PART = 88
"""Keys of a part."""


BACKEND = declared(
    __name__,
    "Parts of the keys, merged by their log-sum-exps.",
    double_backward=True,
    numerics=Numerics(probabilities="accumulation", tf32=True),
)
check = require_capabilities(BACKEND.name, BACKEND.capabilities)


def attend(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    """softmax(scale q k^T + bias, masked) v."""
    check(inputs)
    B, H, Q, D = inputs.query.shape
    G, K = inputs.key.shape[1:3]
    wide = torch.promote_types(inputs.query.dtype, torch.float32)
    query = (inputs.query.to(wide) * inputs.scale).reshape(B, G, H // G * Q, D)
    first, last = _reach(inputs.mask, B, Q, K)
    outputs, sums, sees = [], [], []
    table = None if inputs.bias is None else _leaf(inputs.bias).to(wide)
    for start in range(0, K, PART):
        part = slice(start, min(start + PART, K))
        if not bool(((first < part.stop) & (last >= part.start)).any()):
            continue
        key, value = (tensor[:, :, part].to(wide) for tensor in (inputs.key, inputs.value))
        scores = (query @ key.mT).view(B, H, Q, -1)
        if inputs.softcap is not None:
            scores = torch.tanh(scores / inputs.softcap) * inputs.softcap
        if table is not None:
            scores = scores + _bias(inputs.bias, table, inputs.mask.offset, Q, part)
        shown = _shown(inputs.mask, first, last, part)
        scores = scores.masked_fill(~shown, -torch.inf)
        output, lse = _attend_part(scores, value, shown)
        outputs.append(output)
        sums.append(lse)
        sees.append(shown.any(-1, keepdim=True))
    if not outputs:
        output = _nothing(inputs).expand(B, H, Q, inputs.value.shape[3]).clone()
        return AttentionOutput(output, lse=torch.full((B, H, Q), -torch.inf) if inputs.return_lse else None)
    output, lse = _merge(outputs, sums, sees)
    return AttentionOutput(output.to(inputs.query.dtype), lse=lse.squeeze(-1).float() if inputs.return_lse else None)


def _nothing(inputs: AttentionInputs) -> Tensor:
    """0, with gradients of 0 for every tensor of the call."""
    bias = inputs.bias
    leaves = [inputs.query, inputs.key, inputs.value]
    if bias is not None:
        leaves.append(_leaf(bias))
    total = sum(leaf.to(inputs.query.dtype).sum() for leaf in leaves)
    return torch.where(torch.tensor(False), total, torch.zeros((), dtype=inputs.query.dtype))


def _attend_part(scores: Tensor, value: Tensor, shown: Tensor) -> tuple[Tensor, Tensor]:
    """Output (B,H,Q,V) and log-sum-exp (B,H,Q,1) of the keys of a part."""
    B, H, Q, K = scores.shape
    highest = scores.detach().amax(-1, keepdim=True)
    level = torch.where(highest == -torch.inf, 0.0, highest)
    powers = torch.exp(scores - level)
    total = powers.sum(-1, keepdim=True)
    summed = (powers.reshape(B, value.shape[1], -1, K) @ value).view(B, H, Q, -1)
    nothing = total == 0
    safe = torch.where(nothing, 1.0, total)
    return summed / safe, torch.where(nothing, -torch.inf, level + torch.log(safe))


def _merge(outputs: list[Tensor], sums: list[Tensor], sees: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of all parts together."""
    seen = torch.stack([shown.expand_as(lse) for shown, lse in zip(sees, sums, strict=True)]).any(0)
    lses = torch.stack(sums)
    highest = torch.where(seen, lses.detach().amax(0), 0.0)
    shares = torch.exp(lses - highest)
    total = shares.sum(0)
    safe = torch.where(seen, total, 1.0)
    output = sum(share * part for share, part in zip(shares.unbind(0), outputs, strict=True)) / safe
    return torch.where(seen, output, 0.0), torch.where(seen, highest + torch.log(safe), -torch.inf)


def _reach(mask: Mask, B: int, Q: int, K: int) -> tuple[Tensor, Tensor]:
    """The first and the last key that a query may see, by all terms that are intervals: (B|1,1,Q,1)."""
    queries = torch.arange(Q)[:, None]
    offset = mask.offset
    start = offset.long().view(-1, 1, 1, 1) if isinstance(offset, Tensor) else (offset or 0)
    position = (start + queries).view(-1, 1, Q, 1)
    first, last = torch.zeros_like(position), torch.full_like(position, K - 1)
    if mask.causal:
        last = last.minimum(position)
    if mask.window is not None:
        left, right = mask.window
        first = first if left is None else first.maximum(position - left)
        last = last if right is None else last.minimum(position + right)
    if mask.key_lengths is not None:
        last = last.minimum(mask.key_lengths.long().view(-1, 1, 1, 1) - 1)
    if mask.query_lengths is not None:
        last = last.where(queries < mask.query_lengths.view(-1, 1, 1, 1), -1)
    return first, last


def _shown(mask: Mask, first: Tensor, last: Tensor, part: slice) -> Tensor:
    keys = torch.arange(part.start, part.stop)
    shown = (keys >= first) & (keys <= last)
    if mask.key_visible is not None:
        shown = shown & mask.key_visible[:, None, None, part]
    if mask.query_segments is not None and mask.key_segments is not None:
        shown = shown & (mask.query_segments[:, None, :, None] == mask.key_segments[:, None, None, part])
    if mask.visible is not None:
        shown = shown & _keys_of(mask.visible, part)
    return shown


def _keys_of(tensor: Tensor, part: slice) -> Tensor:
    """Four axes, and of the keys those of the part; an axis of size 1 speaks of all."""
    while tensor.dim() < 4:
        tensor = tensor[None]
    return tensor if tensor.shape[3] == 1 else tensor[..., part]


def _leaf(bias: Bias) -> Tensor:
    return bias.slopes if isinstance(bias, LinearBias) else bias.values


def _bias(bias: Bias, table: Tensor, offset: int | Tensor | None, Q: int, part: slice) -> Tensor:
    """The bias of a part, of its numbers in the type of accumulation."""
    if isinstance(bias, DenseBias):
        return _keys_of(table, part)
    start = offset.long().view(-1, 1, 1) if isinstance(offset, Tensor) else torch.tensor(offset or 0).view(1, 1, 1)
    distance = torch.arange(part.start, part.stop) - start - torch.arange(Q)[:, None]
    if isinstance(bias, LinearBias):
        return table[:, None, None] * -distance.abs()[:, None]
    index = distance.clamp(bias.low, bias.low + table.shape[1] - 1) - bias.low
    return table[:, index].transpose(0, 1)
