"""One attention outside of any stack:

y = x + attention(x, memory)
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from tfkit.plugin.model_parts import AttentionConfig, ForwardContext, MultiHeadAttention, NodeContext, NodeOutput

from . import LookupOptions, widths


class Lookup(nn.Module):
    """(B, Q, M) and the memory (B, K, N), to (B, Q, M)."""

    memory_only_attended = True  # beams of one sentence share their memory

    def __init__(self, name: str, lookup: MultiHeadAttention) -> None:
        super().__init__()
        self.name, self.lookup = name, lookup

    def attention_sites(self) -> list[tuple[int, MultiHeadAttention]]:
        return [(0, self.lookup)]

    def forward(self, context: ForwardContext, input: NodeOutput, memory: NodeOutput) -> NodeOutput:
        call = context.stack_context(self.name, input, causal=True, memory=memory)
        return replace(input, tensor=input.tensor + self.lookup(input.tensor, call, 0))


def build(options: LookupOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    M, heads = context.signals["input"].width, options.num_heads
    projections: dict[str, nn.Module] = {part: nn.Linear(width, M) for part, width in widths(context).items()}
    config = AttentionConfig(heads, heads, M // heads, scale=(M // heads) ** -0.5, cross=True)
    return Lookup(context.name, MultiHeadAttention("lookup", projections, config))
