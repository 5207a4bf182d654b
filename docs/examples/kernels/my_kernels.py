"""Attention in the form of flash_attn: q (B, S, H, D), k and v (B, S, G, D). This file does not import tfkit."""

import torch


def draft(q, k, v, causal=False, softmax_scale=None):
    return _attend(q, k, v, 0 if causal else None, softmax_scale)  # wrong: the form aligns the last query to the last key


def attention(q, k, v, causal=False, softmax_scale=None):
    return _attend(q, k, v, k.shape[1] - q.shape[1] if causal else None, softmax_scale)


def _attend(q, k, v, offset, scale):
    k, v = (each.repeat_interleave(q.shape[2] // each.shape[2], dim=2) for each in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if offset is None:
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(offset)
    rows = seen.any(-1, keepdim=True)  # a query that sees no key has a zero output
    weights = scores.masked_fill(~(seen | ~rows), float("-inf")).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", torch.where(rows, weights, 0.0), v)
