"""ExecuTorch's CPU kernel. bench/field_report.py runs it."""

from __future__ import annotations

import torch
from splitting import square
from torch import Tensor


def executorch(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """llama::custom_sdpa; its tensors are (B, S, H, D), and it has no more queries than keys."""
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  # registers the operator

    if query.shape[3] != value.shape[3] or any(each.requires_grad for each in (query, key, value)):
        raise NotImplementedError("it has one head dim and no gradient")
    Q = query.shape[2]
    if key.shape[2] < Q:
        query, key, value, attn_mask = square(query, key, value, attn_mask)
    if attn_mask is not None:
        if attn_mask.shape[:2] != (1, 1):
            raise NotImplementedError("it takes a mask (S, K)")
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
        attn_mask = attn_mask[0, 0].float()  # the only dtype that it reads right: docs/upstream/executorch-mask-dtype.md
    q, k, v = (each.transpose(1, 2).contiguous() for each in (query, key, value))
    return torch.ops.llama.custom_sdpa(q, k, v, k.shape[1] - q.shape[1], attn_mask, 0.0, False, scale).transpose(1, 2)[:, :, :Q]
