"""ring-attention-pytorch: causal attention with more keys than queries depends on the bucket size."""

import torch
from ring_attention_pytorch import default_attention, ring_flash_attn

torch.manual_seed(0)
q, k, v = torch.randn(1, 4, 1, 8), torch.randn(1, 8, 1, 8), torch.randn(1, 8, 1, 8)
want = default_attention(q, k, v, causal=True)
for size in (8, 4, 2):
    found = ring_flash_attn(q, k, v, causal=True, bucket_size=size, ring_size=1)
    print(f"bucket_size={size}: differs from default_attention by {(found - want).abs().max():.2f}")
