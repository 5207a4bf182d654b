"""What the built-in sub-layers keep for the backward pass. Autograd saves the operands of each product, and the input or the
result of each elementwise function: https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors

The terms are those of Korthikanti et al. 2022, section 4.1 (https://arxiv.org/abs/2205.05198), for weights and norms in
float32, projections with an input each, and any dtype, gate and number of heads. N tokens, K keys, M features of the stack, S
of the memory, c bytes of a number in a product.
"""

from __future__ import annotations

from ...slots.cost import Cost, Sizes
from ...slots.kept import WIDE, Numbers
from ...slots.score import ScoreSite
from ...slots.sublayer import SublayerContext, changed_settings
from .options import CrossAttentionOptions, FeedForwardOptions, SelfAttentionOptions


def attention_kept(options: SelfAttentionOptions, context: SublayerContext, sizes: Sizes, numbers: Numbers) -> int:
    """Inputs, queries, keys and values, the merged heads, and either the sum of each softmax or all its weights.

    inputs   c (N M + 2 K S) with autocast, else 4 N M, because the three projections share one tensor
    heads    c (N H D + K G (D + V)), plus 4 bytes each of queries and keys before their norm
    output   c N H V, twice where a row may see no key and is set to zero
    softmax  4 B H Q with a fused kernel, which computes the weights again (FlashAttention, section 3.1,
             https://arxiv.org/abs/2205.14135); else 4 B H Q K, and as much for each setting of scores or weights
    """
    B, Q, c = sizes.batch, sizes.queries, numbers.product
    N, K = B * Q, B * sizes.keys
    width, H, G = context.width, options.num_heads, options.kv_heads
    D, V = options.dim(width), options.values(width)
    source = (context.memory_width or width) if isinstance(options, CrossAttentionOptions) else width
    weighted = options.name in numbers.weighted
    inputs = c * (N * width + 2 * K * source) if numbers.autocast else c * N * width
    heads = (WIDE if weighted else c) * (N * H * D + K * G * (D + V))
    if options.query_key_norm.kind != "none":
        heads += WIDE * (N * H * (D + 1) + K * G * (D + 1))
    output = c * N * H * V * (2 if context.padded else 1)
    softmax = WIDE * B * H * Q
    if weighted:
        copies = 1 + len(changed_settings(options))
        softmax = B * H * Q * sizes.keys * (WIDE * copies + (options.dropout > 0.0))
    gate = c * N * (width + options.gates(width) + H * V) if options.output_gate != "none" else 0
    mixed = c * K * G * V if options.value_residual != "none" else 0
    own: Cost = options.score.entry.costs(options.score.options, ScoreSite(H, D), G, sizes)
    return inputs + heads + output + softmax + gate + mixed + WIDE * own.elements


def ffn_kept(options: FeedForwardOptions, context: SublayerContext, sizes: Sizes, numbers: Numbers) -> int:
    """The input, M; the hidden features F that the activation, the gate and the output projection need; dropout's mask.

    plain   c N (M + F (1 + own)), gated   c N (M + F (3 + own)), where `own` counts what the activation itself keeps
    With autocast the gate casts a second copy of the input.
    """
    N, F, c = sizes.batch * sizes.queries, options.d_ff, numbers.product
    entry = options.activation.entry
    inputs = context.width * (2 if entry.gated and numbers.autocast else 1)
    hidden: int = F * ((3 if entry.gated else 1) + entry.kept)
    dropped = N * F * (c + 1) if options.dropout else 0
    return c * N * (inputs + hidden) + dropped
