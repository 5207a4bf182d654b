"""The modules behind the node kinds."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from ...nn.heads import Classify, Dense, LayerMix, Pool
from ...nn.layers import Embedding, Linear
from ...nn.span_logits import SpanLogits
from ...nn.stack import LayerParts, Stack, Wiring
from ...nn.tokens import TokenLogits, Tokens
from ...plugin import Component
from ...slots.layer import Layer, modules_in, sequence
from ...slots.lazy import load
from ...slots.node import NodeContext
from ...slots.position import PositionSite
from .entries import tokens_width, vocab_size
from .options import (
    ClassifyOptions,
    DenseOptions,
    LayerMixOptions,
    PoolOptions,
    StackOptions,
    TokenLogitsOptions,
    TokensOptions,
)
from .span_logits_entry import SpanLogitsOptions
from .stack_entry import shared_scheme, shared_schemes, sublayer_context


def norm_or_none(norm: Component, width: int) -> nn.Module | None:
    """The module of a norm, None for the kind `none`."""
    return None if norm.kind == "none" else load(norm.entry.build)(norm.options, width)


def tokens(options: TokensOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    width = options.d_model
    position = options.position
    scheme = load(position.entry.build)(position.options, PositionSite(width)) if position.entry.acts else None
    return Tokens(
        context.name,
        _table(options.vocab_size or 0, width) if options.share is None else None,
        _table(options.segments, width) if options.segments else None,
        scheme,
        norm_or_none(options.embedding_norm, tokens_width(options)),
        options.factor,
        options.dropout,
    )


def _table(rows: int, width: int) -> Embedding:
    """An embedding without values: the initialiser draws them. torch's own drawing on the meta device imports its compiler."""
    return Embedding(rows, width, torch.empty(rows, width))


def stack(options: StackOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    width = context.signals["input"].width
    schemes = shared_schemes(options, context)
    layers: list[nn.Module | None] = [None] * modules_in(options.layers)
    order = []
    for number, layer in sequence(options.layers):
        order.append(number)
        if layers[number] is None:
            layers[number] = _layer(options, context, layer, schemes)
    return Stack(
        context.name,
        [layer for layer in layers if layer is not None],
        tuple(order),
        [load(scheme.entry.build)(scheme.options, site) for scheme, site in schemes],
        norm_or_none(options.final_norm, width),
        bool(options.causal),
        options.checkpoint,
        keep_layers,
    )


def _layer(options: StackOptions, context: NodeContext, layer: Layer, schemes: list[Any]) -> nn.Module:
    width = context.signals["input"].width
    placement = layer.placement
    assert placement is not None
    assert context.stack is not None
    constants = placement.entry.constants(placement.options, context.stack)
    branches, scales = {}, {}
    for sublayer in layer.sublayers or ():
        own = sublayer.options
        pair = shared_scheme(options, context, layer, sublayer)
        wiring = Wiring(context.name, own.name, schemes.index(pair) if pair is not None else None)
        branches[own.name] = load(sublayer.entry.build)(own, sublayer_context(options, context, layer, sublayer), wiring)
        scales[own.name] = constants.branch * own.residual_scale
    sites = placement.entry.norm_sites(placement.options, tuple(branches))
    norms = {site: load(layer.norm.entry.build)(layer.norm.options, width) for site in sites}
    parts = LayerParts(branches, norms, constants.skip, scales, layer.dropout)
    return load(placement.entry.build)(placement.options, parts)  # type: ignore[no-any-return]


def dense(options: DenseOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    inner = context.signals["input"].width
    width = options.d_model or inner
    activation = options.activation
    activate = None if activation.kind == "identity" else partial(load(activation.entry.function), options=activation.options)
    return Dense(Linear(inner, width, options.bias), activate, norm_or_none(options.output_norm, width), options.dropout)


def token_logits(options: TokenLogitsOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    width = context.signals["input"].width
    size = vocab_size(options, context)
    weight = Linear(width, size, bias=False) if options.share is None else None
    bias = nn.Parameter(torch.zeros(size), requires_grad=options.bias is True) if options.bias else None
    scale = options.scale if isinstance(options.scale, float) else float(width) ** -0.5
    return TokenLogits(weight, bias, scale, options.softcap)


def pool(options: PoolOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return Pool(context.name, options.take, _end_id(context), norm_or_none(options.output_norm, context.signals["input"].width))


def _end_id(context: NodeContext) -> int | None:
    """The end token of the node that the option `tokens` names, if it is written."""
    tokens = context.targets.get("tokens")
    return tokens.end_id if isinstance(tokens, TokensOptions) else None


def span_logits(options: SpanLogitsOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return SpanLogits(Linear(context.signals["input"].width, 2, options.bias), _end_id(context))


def classify(options: ClassifyOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return Classify(Linear(context.signals["input"].width, options.classes, options.bias), options.dropout)


def layer_mix(options: LayerMixOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return LayerMix(context.signals["input"].depth + options.embeddings, options.embeddings)
