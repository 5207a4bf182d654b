"""ExecuTorch: custom_sdpa reads a bfloat16 mask as float32, beyond its end."""

import torch
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  # registers the operator

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 8, 2, 16, dtype=torch.bfloat16)
hides = torch.full((8, 8), -torch.inf).triu(1)
want = torch.nn.functional.scaled_dot_product_attention(*(each.transpose(1, 2).float() for each in (q, k, v)), attn_mask=hides)
for dtype in (torch.float32, torch.bfloat16):
    found = torch.ops.llama.custom_sdpa(q, k, v, 0, hides.to(dtype), 0.0, False, None).transpose(1, 2)
    print(f"mask {dtype}: differs by {(found.float() - want).abs().max():.2f}")
