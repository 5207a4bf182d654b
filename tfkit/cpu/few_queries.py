"""Attention with few queries or few keys on a CPU, without gradients, as two batched matrix products:

    output = softmax(scale q k^T + mask) v

A decoding step has one query per row, or one per beam. Torch's fused CPU kernel processes blocks of 32 queries or more; with
fewer, the fixed cost per block exceeds the arithmetic. It also computes the exponentials of fewer than 16 keys one by one.
For one query of 300 rows with 4 heads over 20 keys it takes 1.6 times as long, and 2.6 times for self-attention over 12
padded tokens (bench/attention_few.py). With few rows the single call of the fused kernel is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..attention.types import AttentionInputs

MAX_QUERIES = 8
MIN_MATRICES = 128
"""Rows times key heads."""
MIN_PRODUCTS = 400
"""Multiplications per matrix. Below this number torch's `bmm` uses a loop with a quarter of the speed, so a single query is
multiplied with its keys elementwise instead."""
LANES = 16
"""Elements of an AVX-512 vector. Torch computes the exponentials of fewer elements one by one."""


def products_are_faster(inputs: AttentionInputs, mask: Tensor | None) -> bool:
    """Whether the two products are faster than the fused kernel for this call."""
    query, key, value = inputs.query, inputs.key, inputs.value
    if torch.compiler.is_compiling() or not query.is_cpu:
        return False
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in (query, key, value, mask)):
        return False
    (B, H, Q, D), (_, G, K, V) = query.shape, value.shape
    return (
        (Q <= MAX_QUERIES or K < LANES)
        and B * G >= MIN_MATRICES
        and (Q * H == G or Q * H // G * K * min(D, V) >= MIN_PRODUCTS)
        and inputs.dropout == 0.0
        and query.dtype in (torch.float32, torch.float64)
        and key.stride(3) == value.stride(3) == 1
    )


def attend(inputs: AttentionInputs, mask: Tensor | None) -> Tensor:
    """query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V) -> (B,H,Q,V).

    `mask` broadcasts to (B,H,Q,K): bool, True for visible keys, or added to the scores. No row may be fully masked.
    """
    query, key, value = inputs.query, inputs.key, inputs.value
    B, H, Q, D = query.shape
    G, K, V = value.shape[1:]
    elementwise = Q * H == G and K * min(D, V) < MIN_PRODUCTS
    if elementwise:  # H = G and Q = 1: query (B,G,1,D) broadcasts over the keys
        scores = (inputs.scale * query * key).sum(3).view(B * G, 1, K)
    else:
        # The query heads of one key head become rows of one matrix. `beta=0` ignores the first argument of baddbmm.
        rows = query.reshape(B * G, H // G * Q, D)
        scores = torch.baddbmm(rows.new_empty(1, 1, 1), rows, key.flatten(0, 1).mT, beta=0, alpha=inputs.scale)
    if mask is not None:
        by_head = scores.view(B, H, Q, K)
        by_head = by_head.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else by_head + mask
        scores = by_head.view(B * G, -1, K)  # (B*G, H/G*Q, K)
    if K < LANES:
        scores = pad(scores, (0, LANES - K), value=-torch.inf)  # a full vector; the added keys get weight 0
    weights = torch.softmax(scores, -1)[..., :K]
    output = (weights.view(B, G, K, 1) * value).sum(2) if elementwise else torch.bmm(weights, value.flatten(0, 1))
    return output.view(B, H, Q, V)
