"""Correct attention functions by different algorithms, none of which shares code with another or with tfkit.

Each takes query (B, H, Q, D), key (B, G, K, D), value (B, G, K, V), a mask (B|1, H|1, Q, K) that is added to the scores, with
-inf for hidden keys, and a scale. Each returns (B, H, Q, V). No row of a mask hides every key. Half dtypes are computed in
float32, except by torch's own functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

Attention = Callable[..., Tensor]


def einsum(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The equation as sums over named axes, with the query heads of a key head as an axis of their own."""
    B, H, Q, D = query.shape
    G, K = key.shape[1:3]
    grouped = query.view(B, G, H // G, Q, D)
    scores = scale * torch.einsum("bgrqd,bgkd->bgrqk", grouped, key)
    scores = scores + mask.expand(B, H, Q, K).reshape(B, G, H // G, Q, K)
    weights = scores.softmax(-1)
    return torch.einsum("bgrqk,bgkv->bgrqv", weights, value).flatten(1, 2)


def one_query_at_a_time(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """A loop over the queries; each is a product of a matrix and a vector."""
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    rows = []
    for at in range(query.shape[2]):
        scores = (key @ query[:, :, at, :, None]).squeeze(-1) * scale + mask[:, :, at]
        rows.append((scores.softmax(-1)[..., None] * value).sum(2))
    return torch.stack(rows, 2)


def two_passes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The first pass over blocks of 24 keys finds maxima and sums, the second multiplies with the values."""
    share = query.shape[1] // key.shape[1]
    keys, values = (each.repeat_interleave(share, 1).split(24, 2) for each in (key, value))
    blocks = [scale * query @ each.mT for each in keys]
    masks = mask.expand(*query.shape[:3], key.shape[2]).split(24, -1)
    scores = [block + part for block, part in zip(blocks, masks, strict=True)]
    highest = torch.stack([block.detach().amax(-1) for block in scores]).amax(0)[..., None]
    total = sum((block - highest).exp().sum(-1, keepdim=True) for block in scores)
    return sum((block - highest).exp() / total @ part for block, part in zip(scores, values, strict=True))


def tree(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Halves of the keys, again and again down to seven; two halves are merged by their log-sum-exps."""
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    scores = query @ (scale * key).mT + mask

    def attend(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        K = value.shape[2]
        if K <= 7:
            highest = scores.detach().amax(-1, keepdim=True).clamp(min=-1e30)
            powers = (scores - highest).exp()
            total = powers.sum(-1, keepdim=True)
            seen = total > 0
            safe = torch.where(seen, total, 1.0)
            return powers @ value / safe, torch.where(seen, safe.log() + highest, -torch.inf)
        (left, low), (right, high) = (
            attend(scores[..., part], value[:, :, part]) for part in (slice(0, K // 2), slice(K // 2, K))
        )
        peak = torch.maximum(low, high).detach().clamp(min=-1e30)
        shares = (low - peak).exp(), (high - peak).exp()
        both = torch.where(shares[0] + shares[1] > 0, shares[0] + shares[1], 1.0)
        merged = torch.where(shares[0] + shares[1] > 0, both.log() + peak, -torch.inf)
        return (shares[0] * left + shares[1] * right) / both, merged

    return attend(scores, value)[0]


def ring(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Three devices hold a part of the keys each; each part of the queries meets them from its own on, around the ring."""
    share, mask = query.shape[1] // key.shape[1], mask.expand(*query.shape[:3], key.shape[2])
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    places = torch.arange(key.shape[2]).tensor_split(3)
    outputs = []
    for rank, queries in enumerate(torch.arange(query.shape[2]).tensor_split(3)):
        own = query[:, :, queries] * scale
        highest = own.new_full((*own.shape[:3], 1), -1e30)
        total, output = torch.zeros_like(highest), own.new_zeros(*own.shape[:3], value.shape[3])
        for hop in range(3):
            here = places[(rank + hop) % 3]
            if not len(here):
                continue
            scores = own @ key[:, :, here].mT + mask[:, :, queries][..., here]
            newer = torch.maximum(highest, scores.detach().amax(-1, keepdim=True))
            powers, kept = (scores - newer).exp(), (highest - newer).exp()
            total, output = kept * total + powers.sum(-1, keepdim=True), kept * output + powers @ value[:, :, here]
            highest = newer
        outputs.append(output / total)
    return torch.cat(outputs, 2)


def recurrent(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention as a recurrent network that reads one key after the other (https://arxiv.org/abs/2405.13956)."""
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    B, H, Q, _ = query.shape
    mask = mask.expand(B, H, Q, key.shape[2])
    numerator, denominator = key.new_zeros(B, H, Q, value.shape[3]), key.new_zeros(B, H, Q, 1)
    peak = key.new_full((B, H, Q, 1), -1e30)
    for at in range(key.shape[2]):
        score = (query * key[:, :, None, at]).sum(-1, keepdim=True) * scale + mask[..., at, None]
        newer = torch.maximum(peak, score.detach())
        old, new = (peak - newer).exp(), (score - newer).exp()
        numerator, denominator, peak = numerator * old + value[:, :, None, at] * new, denominator * old + new, newer
    return numerator / denominator


def prefix_scan(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """A parallel scan over the keys; its last element is the output. The operator is that of `recurrent`, but associative."""
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    scores = (scale * query @ key.mT + mask).unsqueeze(-1)  # (B, H, Q, K, 1)
    peak = scores.detach().clamp(min=-1e30)
    total = (scores - peak).exp()
    output = total * value[:, :, None]  # (B, H, Q, K, V)
    while peak.shape[3] > 1:
        if peak.shape[3] % 2:
            peak = functional.pad(peak, (0, 0, 0, 1), value=-1e30)
            total, output = (functional.pad(each, (0, 0, 0, 1)) for each in (total, output))
        (first, second), highest = (peak[..., 0::2, :], peak[..., 1::2, :]), None
        highest = torch.maximum(first, second)
        left, right = (first - highest).exp(), (second - highest).exp()
        total = left * total[..., 0::2, :] + right * total[..., 1::2, :]
        output = left * output[..., 0::2, :] + right * output[..., 1::2, :]
        peak = highest
    return (output / total).squeeze(3)


def ones_column(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The values have a further column of ones, so that one product gives the sums and the denominator."""
    share = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(share, 1) for each in (key, value))
    scores = torch.baddbmm(
        mask.expand(*query.shape[:3], key.shape[2]).flatten(0, 1), query.flatten(0, 1), key.flatten(0, 1).mT,
        alpha=scale,
    ).unflatten(0, query.shape[:2])  # fmt: skip
    powers = torch.exp2((scores - scores.detach().amax(-1, keepdim=True)) * 1.4426950408889634)
    summed = powers @ torch.cat([value, torch.ones_like(value[..., :1])], -1)
    return summed[..., :-1] / summed[..., -1:]


def sparse(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Only visible pairs have a score. The softmax is sums over the pairs of a query by `index_add`."""
    B, H, Q, _ = query.shape
    share, K = H // key.shape[1], key.shape[2]
    mask = mask.expand(B, H, Q, K)
    b, h, q, k = (mask > -torch.inf).nonzero().unbind(1)
    scores = (query[b, h, q] * key[b, h // share, k]).sum(-1) * scale + mask[b, h, q, k]
    row = (b * H + h) * Q + q
    highest = scores.new_full((B * H * Q,), -torch.inf).scatter_reduce(0, row, scores.detach(), "amax")
    powers = (scores - highest[row]).exp()
    total = powers.new_zeros(B * H * Q).index_add(0, row, powers)
    output = powers.new_zeros(B * H * Q, value.shape[3])
    output = output.index_add(0, row, (powers / total[row])[:, None] * value[b, h // share, k])
    return output.view(B, H, Q, -1)


def packed(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Each row of the batch and each head alone, without the keys that none of its queries sees, the last key first."""
    B, H, Q, _ = query.shape
    share, mask = H // key.shape[1], mask.expand(B, H, Q, key.shape[2])
    output = []
    for b in range(B):
        for h in range(H):
            used = (mask[b, h] > -torch.inf).any(0).nonzero()[:, 0].flip(0)
            scores = torch.addmm(mask[b, h][:, used], query[b, h], key[b, h // share, used].T, alpha=scale)
            output.append(functional.softmax(scores, 1) @ value[b, h // share, used])
    return torch.stack(output).view(B, H, Q, -1)


def math_kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Torch's own equation in C++."""
    grouped = query.shape[1] != key.shape[1]
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(query, key, value, mask.to(query.dtype), scale=scale, enable_gqa=grouped)


def multi_head_forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """`torch.nn.functional.multi_head_attention_forward` between projections that change nothing. It fixes the scale."""
    B, H, Q, D = query.shape
    M, K = H * D, key.shape[2]
    rows = [each.permute(2, 0, 1, 3).reshape(each.shape[2], B, M) for each in (query, key, value)]
    same = torch.eye(M, dtype=query.dtype)
    output, _ = functional.multi_head_attention_forward(
        *rows, M, H, None, None, None, None, False, 0.0, same, None, training=False, need_weights=True,
        attn_mask=mask.to(query.dtype).expand(B, H, Q, K).reshape(B * H, Q, K), use_separate_proj_weight=True,
        q_proj_weight=same, k_proj_weight=same, v_proj_weight=same,
    )  # fmt: skip
    return output.view(Q, B, H, D).permute(1, 2, 0, 3)


def log_space(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Logarithms of the weights, and queries in chunks of five from the last to the first."""
    share = query.shape[1] // key.shape[1]
    key, value = (each[:, :, None].expand(-1, -1, share, -1, -1).flatten(1, 2) for each in (key, value))
    root = abs(scale) ** 0.5
    scores = torch.matmul(query * math.copysign(root, scale), key.mT * root) + mask
    chunks = [functional.log_softmax(part, -1).exp() @ value for part in reversed(scores.split(5, 2))]
    return torch.cat(chunks[::-1], 2)


def in_form(function: Attention, wide: bool = True) -> Attention:
    """The function in the form `additive_mask`, with the usual scale and float32 for half dtypes."""

    def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
        dtype = torch.promote_types(query.dtype, torch.float32) if wide else query.dtype
        tensors = [each.to(dtype) for each in (query, key, value, mask)]
        return function(*tensors, query.shape[-1] ** -0.5 if scale is None else scale).to(query.dtype)

    return attention


FEATURES = ("causal", "padding", "mask", "bias", "gqa", "value_dim", "backward", "bias_backward")
INDEPENDENT: dict[str, tuple[Attention, tuple[str, ...]]] = {
    function.__name__: (in_form(function, function is not math_kernel), FEATURES)
    for function in (
        einsum, one_query_at_a_time, two_passes, tree, ring, recurrent, prefix_scan, ones_column, sparse, packed, math_kernel,
        log_space,
    )
}  # fmt: skip
INDEPENDENT["multi_head_forward"] = (multi_head_forward, tuple(name for name in FEATURES if name not in ("gqa", "value_dim")))
"""By name: the function, and the features of the form `additive_mask` that it supports."""
