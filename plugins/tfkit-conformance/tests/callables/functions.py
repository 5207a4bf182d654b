"""Attention functions as authors write them, correct and wrong, in plain torch and NumPy. Nothing here is tfkit's."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import dropout, scaled_dot_product_attention


def flash(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    return_attn_probs=False, *, right=0, top_left=False, interleaved=False, forgets_scale=False, scaled_dropout=True,
):  # fmt: skip
    """flash_attn's form; the keywords after * are the errors that it can make."""
    Q, H, D = q.shape[1:]
    K, G = k.shape[1:3]
    share = (lambda x: x.repeat(1, 1, H // G, 1)) if interleaved else (lambda x: x.repeat_interleave(H // G, 2))
    scale = 1.0 if forgets_scale else D**-0.5 if softmax_scale is None else softmax_scale
    scores = scale * torch.einsum("bqhd,bkhd->bhqk", q, share(k))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(K) - torch.arange(Q)[:, None] - (0 if top_left else K - Q)
    if alibi_slopes is not None:
        scores = scores - (alibi_slopes[:, None, None] * distance.abs()).to(scores.dtype)
    left, after = window_size
    after = 0 if causal else after
    seen = torch.ones(Q, K, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    if after >= 0:
        seen &= distance <= after + right
    rows = seen.any(-1, keepdim=True)
    scores = scores.masked_fill(~(seen | ~rows), -torch.inf)
    weights = torch.where(rows, torch.softmax(scores, -1), 0.0)
    if dropout_p:
        weights = dropout(weights, dropout_p) * (1.0 if scaled_dropout else 1 - dropout_p)
    output = torch.einsum("bhqk,bkhd->bqhd", weights, share(v))
    return (output, torch.logsumexp(scores, -1).float(), None) if return_attn_probs else output


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False,
           ignores_borders=False):  # fmt: skip
    """flash_attn's packed form."""
    if ignores_borders:
        return flash(q[None], k[None], v[None], softmax_scale=softmax_scale, causal=causal)[0]
    found = []
    for n in range(len(cu_seqlens_q) - 1):
        queries, keys = (slice(borders[n], borders[n + 1]) for borders in (cu_seqlens_q, cu_seqlens_k))
        found.append(flash(q[None, queries], k[None, keys], v[None, keys], softmax_scale=softmax_scale, causal=causal)[0])
    return torch.cat(found)


def only_causal(query, key, value, is_causal=False):
    """sdpa's form with nothing else."""
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def without_padding(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Takes a mask and ignores it."""
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale)


def added(query, key, value, mask):
    """Takes an additive mask."""
    scores = query @ key.mT * query.shape[-1] ** -0.5 + mask
    return torch.softmax(scores, -1) @ value


def efficient(query, key, value, attn_bias=None, p=0.0, scale=None):
    """xformers' form: (B, S, H, D)."""
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    return scaled_dot_product_attention(query, key, value, attn_bias, p, scale=scale).transpose(1, 2)


def arrays(query, key, value, bias=None, mask=None, scale=None):
    """NumPy, (B, S, H, D), with a boolean mask (B, H, Q, K)."""
    share = query.shape[2] // key.shape[2]
    key, value = (np.repeat(each, share, axis=2) for each in (key, value))
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores.astype(np.float32) + (0 if bias is None else bias)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True)).astype(query.dtype)
    return np.einsum("bhqk,bkhd->bqhd", weights, value)


def fixed_shape(image, text):
    """No attention form at all."""
    return image


NOT_A_FUNCTION = 3
