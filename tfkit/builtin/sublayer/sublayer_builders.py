"""The modules behind the sub-layer kinds."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from ...nn.layers import FeedForward, Linear
from ...nn.multi_head import AttentionConfig, MultiHeadAttention, PositionConfig
from ...nn.recurrent_sublayers import AverageAttention, Ssru
from ...nn.stack import Wiring
from ...nn.value_residual import ValueResidual
from ...plugin import Component
from ...slots.lazy import load
from ...slots.score import ScoreSite
from ...slots.sublayer import SublayerContext, SublayerOptions, settings_of
from .entries import acts_in_attention, matrices, own_table, position_site, scale_of, scheme_of, score_of
from .options import AverageAttentionOptions, CrossAttentionOptions, FeedForwardOptions, SelfAttentionOptions


def attention(options: SelfAttentionOptions, context: SublayerContext, wiring: Wiring) -> nn.Module:
    width, dim = context.width, options.dim(context.width)
    projections: dict[str, nn.Module] = {"output": nn.Identity()}
    for name, (_, inner, outer, bias) in matrices(options, context).items():
        projections[name] = Linear(inner, outer, bias)
    config = AttentionConfig(
        num_heads=options.num_heads,
        num_kv_heads=options.kv_heads,
        head_dim=dim,
        scale=scale_of(options, dim),
        window=(options.window - 1, 0) if isinstance(options.window, int) else options.window,
        cross=isinstance(options, CrossAttentionOptions),
        memory=options.memory if isinstance(options, CrossAttentionOptions) else None,
        score=score_of(options),
        norm_all_heads=options.query_key_norm_over == "all_heads",
        **settings_of(options),
    )
    position_config, own_position = _position(options, context, wiring)
    score = options.score
    score_module = load(score.entry.build)(score.options, ScoreSite(options.num_heads, dim)) if score.entry.build else None
    query_norm, key_norm = (_norm(options.query_key_norm, over) for over in options.norm_widths(width))
    sink = nn.Parameter(torch.zeros(options.num_heads)) if options.sink else None
    residual = None if options.value_residual == "none" else ValueResidual(options.value_residual == "learned")
    return MultiHeadAttention(
        wiring.name, projections, config, position_config, own_position, query_norm, key_norm, score_module, sink, residual
    )


def _norm(norm: Component, width: int) -> nn.Module | None:
    return None if norm.kind == "none" else load(norm.entry.build)(norm.options, width)


def _position(
    options: SelfAttentionOptions, context: SublayerContext, wiring: Wiring
) -> tuple[PositionConfig | None, nn.Module | None]:
    scheme = scheme_of(options, context)
    if not acts_in_attention(scheme):
        return None, None
    entry = scheme.entry
    owns_table = own_table(options, context)
    config = PositionConfig(
        rotates="queries_keys" in entry.acts,
        biases="scores" in entry.acts,
        reads_query=entry.reads_query,
        scheme=None if owns_table else wiring.scheme,
    )
    return config, load(entry.build)(scheme.options, position_site(options, context)) if owns_table else None


def feed_forward(options: FeedForwardOptions, context: SublayerContext, wiring: Wiring) -> nn.Module:
    width, inner, bias = context.width, options.d_ff, options.bias
    activation = options.activation
    gate = Linear(width, inner, bias) if activation.entry.gated else None
    activate = partial(load(activation.entry.function), options=activation.options)
    return FeedForward(Linear(width, inner, bias), gate, Linear(inner, width, bias), activate, options.dropout)


def ssru(options: SublayerOptions, context: SublayerContext, wiring: Wiring) -> nn.Module:
    width = context.width
    return Ssru(wiring.name, Linear(width, width, False), Linear(width, width))


def average_attention(options: AverageAttentionOptions, context: SublayerContext, wiring: Wiring) -> nn.Module:
    width = context.width
    gate = Linear(2 * width, 2 * width) if options.gate else None
    return AverageAttention(wiring.name, feed_forward(options, context, wiring), gate)
