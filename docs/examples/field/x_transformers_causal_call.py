"""x-transformers: `causal=True` in the call of Attend is ignored with flash=True."""

import torch
from x_transformers.attend import Attend

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 4, 8)
plain, _ = Attend(flash=False)(q, k, v, causal=True)
flash, _ = Attend(flash=True)(q, k, v, causal=True)
full, _ = Attend(flash=True)(q, k, v, causal=False)
for name, other in {"plain": plain, "causal=False": full}.items():
    print(f"flash differs from {name} by {(flash - other).abs().max():.2f}")
