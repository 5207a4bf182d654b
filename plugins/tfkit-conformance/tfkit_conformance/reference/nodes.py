"""The formulas of the other built-in node kinds: f(options, context, weights, inputs) -> Value.

`inputs` holds what a node reads, by field (`input`, `memory`, `inputs.0`, `tokens`). An input node finds its ids, images or
frames under "".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from tfkit.plugin.model_parts import NodeContext, PositionSite

from .formulas import BUILT_IN, Unchecked, of
from .recurrence import at, first, last, mean, rnn
from .stacks import placed, stack
from .values import Value, Weights, linear

Inputs = Mapping[str, Value]


def tokens(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """norm(factor E[id] + S[segment] + position), Vaswani et al. 2017, section 3.4 (https://arxiv.org/abs/1706.03762);
    segments: Devlin et al. 2018, section 3.1 (https://arxiv.org/abs/1810.04805)."""
    read = inputs[""]
    assert read.ids is not None
    factor = options.scale if isinstance(options.scale, float) else options.d_model**0.5
    x = factor * weights["embedding.weight"][read.ids]
    if options.segments:
        segments = inputs["segments"].ids if "segments" in inputs else torch.zeros_like(read.ids)
        assert segments is not None
        x = x + weights["segments.weight"][segments]
    x = placed(options.position, PositionSite(options.d_model), weights.under("position"), x, read.shown())
    x = of("norm", options.embedding_norm)(weights.under("embedding_norm"), x)
    return Value(x, read.visible, ids=read.ids)


def patches(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """[class token; W patch_1; W patch_2; ...] + positions, Dosovitskiy et al. 2020, equation 1
    (https://arxiv.org/abs/2010.11929). Distillation token: Touvron et al. 2020 (https://arxiv.org/abs/2012.12877); registers
    without positions: Darcet et al. 2023 (https://arxiv.org/abs/2309.16588)."""
    images, P = inputs[""].tensor, options.patch
    B, channels, height, width = images.shape
    if (height, width) != (options.size, options.size):
        raise Unchecked(f"node patches with images of {height} x {width}, which need interpolated positions")
    side = options.size // P
    cut = images.reshape(B, channels, side, P, side, P).permute(0, 2, 4, 1, 3, 5)  # B, rows, columns, C, P, P
    x = cut.flatten(1, 2).flatten(2) @ weights["projection.weight"].flatten(1).mT
    if options.bias:
        x = x + weights["projection.bias"]
    names = [name for name in ("class_token", "distillation_token") if getattr(options, name)]
    x = torch.cat([*(weights[name].expand(B, 1, -1) for name in names), x], 1)
    site = PositionSite(options.d_model, rows=side * side + len(names), grid=(side, side), prefix=len(names))
    x = placed(options.position, site, weights.under("position"), x, Value(x).shown())
    if options.registers:
        registers = weights["registers"].expand(B, -1, -1)
        x = torch.cat([x[:, : len(names)], registers, x[:, len(names) :]], 1)
    return Value(of("norm", options.embedding_norm)(weights.under("embedding_norm"), x))


def features(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """The frames as they are."""
    return inputs[""]


def convolutions(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """y_t = f(b + sum_k W_k x_(stride t + k - (width - 1) // 2)), as in the encoder of Radford et al. 2022, section 2.2
    (https://arxiv.org/abs/2212.04356). Padding and what lies outside of the sequence count as zero."""
    read = inputs["input"]
    x, visible = read.tensor, read.shown()
    for number, convolution in enumerate(options.convolutions):
        layer_weights = weights.under(f"convolutions.{number}")
        x = x.masked_fill(~visible[..., None], 0.0)
        before = (convolution.width - 1) // 2
        padded = functional.pad(x, (0, 0, before, convolution.width - 1 - before))
        windows = padded.unfold(1, convolution.width, convolution.stride)  # (B, L, M, width)
        x = windows.flatten(2) @ layer_weights["weight"].flatten(1).mT
        if convolution.bias:
            x = x + layer_weights["bias"]
        x = of("activation", convolution.activation)(x)
        visible = visible[:, :: convolution.stride]
    out = Value(x, None if read.visible is None else visible)
    length = context.signals["input"].strided(_product(options), x.shape[-1]).length
    site = PositionSite(x.shape[-1], rows=length if isinstance(length, int) else None)
    return Value(placed(options.position, site, weights.under("position"), x, out.shown()), out.visible)


def _product(options: Any) -> int:
    stride = 1
    for convolution in options.convolutions:
        stride *= convolution.stride
    return stride


def dense(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """norm(f(W x + b))"""
    read = inputs["input"]
    x = of("activation", options.activation)(linear(weights, "linear", read.tensor))
    return Value(of("norm", options.output_norm)(weights.under("output_norm"), x), read.visible)


def classify(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """W x + b"""
    return Value(linear(weights, "linear", inputs["input"].tensor), inputs["input"].visible)


def probabilities(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """exp(x_i) / sum_j exp(x_j), Vaswani et al. 2017, section 3.4 (https://arxiv.org/abs/1706.03762)."""
    x = inputs["input"].tensor
    powers = torch.exp(x - x.detach().amax(-1, keepdim=True))
    return Value(powers / powers.sum(-1, keepdim=True), inputs["input"].visible)


def token_logits(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """E (factor x) + b, with the table of the embeddings where it is shared, Press and Wolf 2016
    (https://arxiv.org/abs/1608.05859); softcap: c tanh(logit / c), Gemma 2, section 2 (https://arxiv.org/abs/2408.00118)."""
    x = inputs["input"].tensor
    factor = options.scale if isinstance(options.scale, float) else x.shape[-1] ** -0.5
    y = (factor * x) @ weights["logits.weight"].mT
    if options.bias:
        y = y + weights["bias"]
    return Value(y if options.softcap is None else options.softcap * torch.tanh(y / options.softcap), inputs["input"].visible)


def span_logits(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """S . x_i and E . x_i, Devlin et al. 2018, section 4.2 (https://arxiv.org/abs/1810.04805). What cannot be chosen is 0 here,
    where a model has the smallest number of its dtype."""
    read = inputs["input"]
    may = read.shown()
    if options.choose == "second_text":
        ids, end = inputs["tokens"].ids, context.targets["tokens"].end_id
        assert ids is not None
        ended = ((ids == end) & read.shown()).long().cumsum(1)
        after = ended - (ids == end).long() >= 1  # behind the first end token
        start = torch.arange(ids.shape[1], device=ids.device) == first(read.shown())[:, None]
        may = may & ((after & (ids != end)) | start)
    return Value(linear(weights, "linear", read.tensor).masked_fill(~may[..., None], 0.0), read.visible)


def pool(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """One real token of each row (`first`, `last`, the first end token), or the mean or the largest of all real ones."""
    read = inputs["input"]
    x, visible = read.tensor, read.shown()
    if options.take == "mean":
        y = mean(x, visible)
    elif options.take == "max":
        y = x.masked_fill(~visible[..., None], -torch.inf).amax(1)
    elif options.take == "end_token":
        ids = inputs["tokens"].ids
        assert ids is not None
        y = at(x, first((ids == context.targets["tokens"].end_id) & inputs["tokens"].shown()))
    else:
        y = at(x, first(visible) if options.take == "first" else last(visible))
    return Value(of("norm", options.output_norm)(weights.under("output_norm"), y))


def layer_mix(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """gamma sum_j softmax(w)_j h_j, Peters et al. 2018, equation 1 (https://arxiv.org/abs/1802.05365)."""
    read = inputs["input"]
    powers = torch.exp(weights["weight"] - weights["weight"].detach().amax())
    layers = read.layers[-len(powers) :]  # the last ones: a mix may leave out what the first layer reads
    mixed = sum(share * layer for share, layer in zip(powers / powers.sum(), layers, strict=True))
    return Value(weights["scale"] * mixed, read.visible)


def similarity(options: Any, context: NodeContext, weights: Weights, inputs: Inputs) -> Value:
    """exp(t) cos(a_i, b_j), Radford et al. 2021, figure 3 (https://arxiv.org/abs/2103.00020)."""
    a, b = (inputs[f"inputs.{n}"].tensor for n in range(2))
    a, b = (vectors / torch.sqrt((vectors**2).sum(-1, keepdim=True)) for vectors in (a, b))
    return Value(torch.exp(weights["scale"]) * (a @ b.mT))


BUILT_IN["node"] = {
    "tokens": tokens,
    "patches": patches,
    "features": features,
    "convolutions": convolutions,
    "stack": stack,
    "rnn": rnn,
    "layer_mix": layer_mix,
    "pool": pool,
    "dense": dense,
    "classify": classify,
    "token_logits": token_logits,
    "probabilities": probabilities,
    "span_logits": span_logits,
    "similarity": similarity,
}
