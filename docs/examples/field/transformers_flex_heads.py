"""transformers: flex_attention_forward reads a mask of several heads at head 0 only."""

import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiled, it meets torch_flex_chained_index.py

import torch
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 2, 4, 8)
mask = torch.zeros(1, 2, 4, 4)
mask[:, 1, :, 2:] = torch.finfo(torch.float32).min  # head 1 sees two keys
flex, _ = flex_attention_forward(torch.nn.Module().eval(), q, k, v, mask)
sdpa, _ = sdpa_attention_forward(torch.nn.Module().eval(), q, k, v, mask, is_causal=False)
for head in (0, 1):
    print(f"head {head} differs from sdpa_attention_forward by {(flex - sdpa)[:, :, head].abs().max():.2f}")
