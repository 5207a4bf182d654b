"""x-transformers: `causal=True` in the call of Attend is ignored with flash=True."""

import torch
from x_transformers.attend import Attend

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 4, 8)
plain, _ = Attend(flash=False)(q, k, v, causal=True)
flash, _ = Attend(flash=True)(q, k, v, causal=True)
full, _ = Attend(flash=True)(q, k, v, causal=False)
print(f"flash differs from plain by {(flash - plain).abs().max():.2f}, and from causal=False by {(flash - full).abs().max():.2f}")
