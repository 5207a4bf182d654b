"""Attention in the form of flash_attn: q (B, S, H, D), k and v (B, S, G, D)."""

import torch


def flash_attn_func(q, k, v, softmax_scale=None, causal=False):
    k, v = (tensor.repeat_interleave(q.shape[2] // tensor.shape[2], dim=2) for tensor in (k, v))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * scale
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    if causal:  # the last query and the last key stand side by side
        seen = seen.tril(k.shape[1] - q.shape[1])
    rows = seen.any(-1, keepdim=True)  # a query that sees no key has a zero output
    weights = scores.masked_fill(~(seen | ~rows), float("-inf")).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", torch.where(rows, weights, 0.0), v.float()).to(q.dtype)
