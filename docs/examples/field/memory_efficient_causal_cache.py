"""memory-efficient-attention-pytorch: with more keys than queries, causal attention shifts the diagonal to the wrong side."""

import torch
from memory_efficient_attention_pytorch.flash_attention import FlashAttentionFunction

q, k = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 4, 4)
v = torch.eye(4)[None, None]  # the output is the weights
print("query 0 and 1 of 2 over 4 keys, causal:")
print(FlashAttentionFunction.apply(q, k, v, None, True, 64, 64)[0, 0])
print("expected, the last query at the last key:")
print(torch.ones(2, 4).tril(2) / torch.tensor([[3.0], [4.0]]))
