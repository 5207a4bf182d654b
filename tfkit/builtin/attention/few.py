"""Attention of few queries or few keys on a CPU, without gradients, as two products of batches of matrices:

    output = softmax(scale q k^T + mask) v

A step of decoding has one query per row, or one per beam. torch's fused kernel for the CPU works through blocks of 32 queries
and more, and what it does once per block then takes longer than the sums; and it takes the exponentials of fewer than 16 keys
one by one. One query of 300 rows of 4 heads takes it 1.6 times as long over 20 keys, and 12 padded tokens that see one another
2.6 times (bench/attention_few.py). Where there are few rows its single call is the faster.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...plugin import AttentionInputs

MOST_QUERIES = 8
FEWEST_MATRICES = 128
"""Rows times key heads."""
FEWEST_PRODUCTS = 400
"""Multiplications for each matrix, below which torch multiplies them in a loop of its own, at a quarter of the speed: then one
query is multiplied with its keys element by element."""
LANES = 16
"""Numbers in a vector of AVX-512: torch takes the exponentials of fewer one by one."""


def are_few(inputs: AttentionInputs, mask: Tensor | None) -> bool:
    """Whether the products are the faster way for this call."""
    query, key, value = inputs.query, inputs.key, inputs.value
    if torch.compiler.is_compiling() or not query.is_cpu:
        return False
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (query, key, value, mask)):
        return False
    (B, H, Q, D), (_, G, K, V) = query.shape, value.shape
    return (
        (Q <= MOST_QUERIES or K < LANES)
        and B * G >= FEWEST_MATRICES
        and (Q * H == G or Q * H // G * K * min(D, V) >= FEWEST_PRODUCTS)
        and inputs.dropout == 0.0
        and query.dtype in (torch.float32, torch.float64)
        and key.stride(3) == value.stride(3) == 1
    )


def attend(inputs: AttentionInputs, mask: Tensor | None) -> Tensor:
    """query (B,H,Q,D), key (B,G,K,D), value (B,G,K,V), a mask that broadcasts to (B,H,Q,K), True for visible keys or added to
    the scores, none of whose rows is blind -> (B,H,Q,V)."""
    query, key, value = inputs.query, inputs.key, inputs.value
    B, H, Q, D = query.shape
    G, K, V = value.shape[1:]
    alone = Q * H == G and K * min(D, V) < FEWEST_PRODUCTS
    if alone:
        scores = (inputs.scale * query * key).sum(3).view(B * G, 1, K)
    else:
        rows = query.reshape(B * G, H // G * Q, D)
        scores = torch.baddbmm(rows.new_empty(1, 1, 1), rows, key.flatten(0, 1).mT, beta=0, alpha=inputs.scale)
    if mask is not None:
        shown = scores.view(B, H, Q, K)
        shown = shown.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else shown + mask
        scores = shown.view(B * G, -1, K)
    if K < LANES:
        scores = pad(scores, (0, LANES - K), value=-torch.inf)
    weights = torch.softmax(scores, -1)[..., :K]
    output = (weights.view(B, G, K, 1) * value).sum(2) if alone else torch.bmm(weights, value.flatten(0, 1))
    return output.view(B, H, Q, V)
