"""torch: a compiled FlexAttention on a CPU reads `bias[b][h][i][j]` at wrong places, or corrupts the heap."""

import torch
from torch.nn.attention.flex_attention import flex_attention

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 2, 4, 16)
bias = torch.randn(1, 2, 4, 4)
want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
for name, score_mod in {
    "bias[b, h, i, j]": lambda score, b, h, i, j: score + bias[b, h, i, j],
    "bias[b][h][i][j]": lambda score, b, h, i, j: score + bias[b][h][i][j],
}.items():
    for how, attention in {"eager": flex_attention, "compiled": torch.compile(flex_attention, dynamic=False)}.items():
        print(f"{name} {how}: differs by {(attention(q, k, v, score_mod=score_mod) - want).abs().max():.2f}", flush=True)
