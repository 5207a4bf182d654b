"""ring-attention-pytorch: with more keys than queries, the causal backward has another mask than the forward."""

import torch
from ring_attention_pytorch import default_attention, ring_flash_attn

torch.manual_seed(0)
q, k, v = torch.randn(1, 2, 1, 8), torch.randn(1, 4, 1, 8), torch.randn(1, 4, 1, 8)
results = []
for attention in (default_attention, ring_flash_attn):
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    output = attention(*leaves, causal=True)
    output.sum().backward()
    results.append([output.detach(), *(each.grad for each in leaves)])
for name, one, other in zip(["output", "dq", "dk", "dv"], *results, strict=True):
    print(f"{name} differs from default_attention by {(one - other).abs().max():.2f}")
