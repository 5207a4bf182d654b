"""x-transformers: with more queries than keys, causal attention with and without flash align at different ends."""

import torch
from x_transformers.attend import Attend

torch.manual_seed(0)
q, k, v = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 2, 8), torch.randn(1, 1, 2, 8)
plain, _ = Attend(causal=True, flash=False)(q, k, v)
flash, _ = Attend(causal=True, flash=True)(q, k, v)
print("query 1 of 3 reads key 1 of 2: plain", not torch.equal(plain[0, 0, 1], v[0, 0, 0]), "flash", not torch.equal(flash[0, 0, 1], v[0, 0, 0]))
