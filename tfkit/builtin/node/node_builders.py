"""The modules behind the node kinds."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from ...nn.convolutions import Convolutions, Features
from ...nn.heads import Classify, Dense, LayerMix, Pool, Probabilities, Similarity, SpanLogits
from ...nn.layers import Embedding, Linear
from ...nn.local_attention import LocalCentre
from ...nn.multi_head import AttentionConfig, MultiHeadAttention
from ...nn.patches import Patches
from ...nn.readout import InitialState, Readout
from ...nn.recurrent import Recurrent
from ...nn.recurrent_layer import RecurrentLayer
from ...nn.stack import LayerParts, Stack, Wiring
from ...nn.tokens import TokenLogits, Tokens
from ...plugin import CellSite, Component
from ...slots.layer import Layer, modules_in, sequence
from ...slots.lazy import load
from ...slots.node import NodeContext
from ...slots.position import PositionSite
from .entries import SpanLogitsOptions, tokens_width, vocab_size
from .image_audio_entries import (
    ConvolutionsOptions,
    FeaturesOptions,
    PatchesOptions,
    SimilarityOptions,
    patches_width,
    site_of,
    widths,
)
from .options import (
    ClassifyOptions,
    DenseOptions,
    LayerMixOptions,
    PoolOptions,
    ProbabilitiesOptions,
    StackOptions,
    TokenLogitsOptions,
    TokensOptions,
)
from .rnn_entry import (
    RnnOptions,
    cell_of,
    cell_sites,
    context_cell_site,
    context_width,
    initial_width,
    projects_initial,
    readout_parts,
    readout_reads,
    score_site,
)
from .stack_entry import added_scheme, shared_scheme, shared_schemes, sublayer_context


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
    order, added = [], []
    for number, layer in sequence(options.layers):
        order.append(number)
        pair = added_scheme(context, layer)
        added.append(None if pair is None else schemes.index(pair))
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
        tuple(added),
    )


def _layer(options: StackOptions, context: NodeContext, layer: Layer, schemes: list[Any]) -> nn.Module:
    width = context.signals["input"].width
    placement = layer.placement
    assert placement is not None
    assert context.stack is not None
    constants = placement.entry.constants(placement.options, context.stack)
    branches, scales = {}, {}
    for sublayer in layer.sublayers or ():
        sublayer_options = sublayer.options
        pair = shared_scheme(options, context, layer, sublayer)
        wiring = Wiring(context.name, sublayer_options.name, schemes.index(pair) if pair is not None else None)
        branches[sublayer_options.name] = load(sublayer.entry.build)(
            sublayer_options, sublayer_context(options, context, layer, sublayer), wiring
        )
        scales[sublayer_options.name] = constants.branch * sublayer_options.residual_scale
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


def probabilities(options: ProbabilitiesOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return Probabilities()


def _end_id(context: NodeContext) -> int | None:
    """The end token of the node that the option `tokens` names, if it is written."""
    tokens = context.targets.get("tokens")
    return tokens.end_id if isinstance(tokens, TokensOptions) else None


def span_logits(options: SpanLogitsOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return SpanLogits(Linear(context.signals["input"].width, 2, options.bias), _end_id(context))


def classify(options: ClassifyOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return Classify(Linear(context.signals["input"].width, options.classes, options.bias), options.dropout)


def layer_mix(options: LayerMixOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return LayerMix(context.signals["input"].depth + options.embeddings)


def _scheme(position: Component, site: PositionSite) -> nn.Module | None:
    return load(position.entry.build)(position.options, site) if position.entry.acts else None


def patches(options: PatchesOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    width, patch = options.d_model, options.patch
    return Patches(
        context.name,
        nn.Conv2d(options.channels, width, patch, patch, bias=options.bias),
        options.class_token,
        options.distillation_token,
        options.registers,
        patches_width(options),
        _scheme(options.position, options.site),
        norm_or_none(options.embedding_norm, patches_width(options)),
        options.dropout,
    )


def features(options: FeaturesOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return Features(context.name)


def convolutions(options: ConvolutionsOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    convolutions, activations = [], []
    for convolution, width in widths(options, context):
        convolutions.append(nn.Conv1d(width, convolution.d_model, convolution.width, convolution.stride, bias=convolution.bias))
        activations.append(partial(load(convolution.activation.entry.function), options=convolution.activation.options))
    return Convolutions(convolutions, activations, _scheme(options.position, site_of(options, context)), options.dropout)


def similarity(options: SimilarityOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return Similarity()


def rnn(options: RnnOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    attention, take = options.cross_attention, options.initial_state.take
    second = context_cell_site(options, context)
    return Recurrent(
        context.name,
        [
            RecurrentLayer(_cell(options, site), _cell(options, site) if options.bidirectional else None)
            for site in cell_sites(options, context)
        ],
        options.d_state,
        cell_of(options).states,
        attend=attention.attend if attention else "",
        attention=_attention(options, context) if attention else None,
        context_cell=_cell(options, second) if second else None,
        reads_memory=attention is None and context_width(options, context) > 0,
        feeding=attention is not None and attention.input_feeding,
        initial=_initial(options, context) if projects_initial(options) else None,
        copies=take == "states",
        readout=_readout(options, context) if options.readout else None,
        reads_previous=options.readout is not None and options.readout.state == "previous",
        dropout=options.dropout,
        keep_layers=keep_layers,
    )


def _cell(options: RnnOptions, site: CellSite) -> nn.Module:
    return load(options.cell.entry.build)(options.cell.options, site)  # type: ignore[no-any-return]


def _attention(options: RnnOptions, context: NodeContext) -> MultiHeadAttention:
    """Attention with one head and without projections: states and memory are queries, keys and values."""
    attention = options.cross_attention
    assert attention is not None
    score = attention.score
    projections: dict[str, nn.Module] = {name: nn.Identity() for name in ("query", "key", "value", "output")}
    config = AttentionConfig(
        num_heads=1,
        num_kv_heads=1,
        head_dim=options.d_state,
        scale=attention.scale if isinstance(attention.scale, float) else options.d_state**-0.5,
        dropout=attention.dropout,
        cross=True,
        score="dot" if score.entry.dot else score.kind,
    )
    scorer = load(score.entry.build)(score.options, score_site(options, context)) if score.entry.build else None
    local = LocalCentre(options.d_state, attention.local.half_width) if attention.local else None
    return MultiHeadAttention("cross_attention", projections, config, score=scorer, local=local)


def _initial(options: RnnOptions, context: NodeContext) -> InitialState:
    width = initial_width(options, context)
    features = options.num_layers * cell_of(options).states * options.d_state
    return InitialState(options.initial_state.take, width, nn.Linear(width, features, options.initial_state.bias))


def _readout(options: RnnOptions, context: NodeContext) -> Readout:
    readout = options.readout
    assert readout is not None
    reads, parts = readout_reads(options, context), readout_parts(options, context)
    outer = readout.d_model * (2 if readout.kind == "maxout" else 1)
    return Readout(readout.kind, nn.Linear(sum(parts[name] for name in reads), outer, readout.bias), reads, readout.dropout)
