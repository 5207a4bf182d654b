"""x-transformers: with more queries than keys, causal attention with and without flash align at different ends."""

import torch
from x_transformers.attend import Attend

torch.manual_seed(0)
q, k, v = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 2, 8), torch.randn(1, 1, 2, 8)
for flash in (False, True):
    output, _ = Attend(causal=True, flash=flash)(q, k, v)
    print(f"flash={flash}: query 1 of 3 reads key 1 of 2: {not torch.equal(output[0, 0, 1], v[0, 0, 0])}")
