"""The modules behind `patches`, `features`, `convolutions` and `similarity`."""

from __future__ import annotations

from functools import partial

from torch import nn

from ...nn.convolutions import Convolutions, Features
from ...nn.patches import Patches
from ...nn.similarity import Similarity
from ...plugin import Component
from ...slots.lazy import load
from ...slots.node import NodeContext
from ...slots.position import PositionSite
from .audio_entries import ConvolutionsOptions, FeaturesOptions, site_of, widths
from .build import norm_or_none
from .image_entries import PatchesOptions, patches_width
from .similarity_entry import SimilarityOptions


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
    for each, width in widths(options, context):
        convolutions.append(nn.Conv1d(width, each.d_model, each.width, each.stride, bias=each.bias))
        activations.append(partial(load(each.activation.entry.function), options=each.activation.options))
    return Convolutions(convolutions, activations, _scheme(options.position, site_of(options, context)), options.dropout)


def similarity(options: SimilarityOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return Similarity()
