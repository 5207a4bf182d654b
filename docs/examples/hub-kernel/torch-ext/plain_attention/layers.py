"""The same as a layer, which replaces the `forward` of modules of models."""

from torch import nn

from .attention import flash_attn_func


class Attention(nn.Module):
    def forward(self, q, k, v, softmax_scale=None, causal=False):
        return flash_attn_func(q, k, v, softmax_scale, causal)
