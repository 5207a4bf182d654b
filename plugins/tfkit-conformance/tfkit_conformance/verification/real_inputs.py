"""Checks of the nodes that read real numbers, and of similarities: each is computed again in float64 by its equation.

patches         x_n E + b + p, patch by patch; class token, distillation token and registers in their places
convolutions    f(b + sum_k W_k x[s t + k - (w - 1) // 2]), window by window, with zeros at padding
similarity      exp(s) a_i . b_j / (|a_i| |b_j|)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tfkit import Model
from tfkit.inspection import Node
from tfkit.plugin.model_parts import PositionRange, PositionSite, load

from ..attention.bound import gamma
from ..differences import double
from .approximate import Approximate, elementwise, exact, linear, units, weighted_sum, widened
from .comparison import close, same
from .expected import node_of
from .recording import Recording


def patches(model: Model, recording: Recording, node: Node) -> float:
    """The sequence of one patches node, before its norm."""
    module: Any = model.nodes[node.name]
    options, call = node.options, recording.nodes[node.name]
    images = recording.batch.images[node.name].to(model.dtype)
    P, side = options.patch, options.size // options.patch
    cut = [images[:, :, r * P : r * P + P, c * P : c * P + P].flatten(1) for r in range(side) for c in range(side)]
    x = linear(exact(torch.stack(cut, 1)), module.projection.weight.flatten(1), module.projection.bias)
    if options.distillation_token:
        x = _before(exact(module.distillation_token.expand(len(images), 1, -1)), x)
    if options.class_token:
        x = _before(exact(module.class_token.expand(len(images), 1, -1)), x)
    if module.position is not None:
        x = _with_positions(module.position, node, x)
    first = options.prefix
    if options.registers:
        registers = exact(module.registers.expand(len(images), -1, -1))
        x = _before(_rows(x, slice(0, first)), _before(registers, _rows(x, slice(first, None))))
    normed = recording.inner.get((node.name, "embedding_norm"), [])
    if normed:
        same("patches", call.output.tensor, normed[0].output, f"`{node.name}` gives its norm's output", "its output")
    got = normed[0].x if normed else call.output.tensor
    return close("patches", got, x.value, x.bound, f"`{node.name}`", "its output")


def _before(first: Approximate, then: Approximate) -> Approximate:
    return Approximate(torch.cat([first.value, then.value], 1), torch.cat([first.error, then.error], 1), then.dtype)


def _rows(x: Approximate, rows: slice) -> Approximate:
    return Approximate(x.value[:, rows], x.error[:, rows], x.dtype)


@torch.no_grad()
def _with_positions(scheme: Any, node: Node, x: Approximate, visible: Tensor | None = None) -> Approximate:
    """Embeddings with what a scheme adds or appends to them, made anew in float64."""
    part = node.options.position
    site = getattr(node.options, "site", None) or PositionSite(x.value.shape[-1], rows=x.value.shape[1])
    made: Any = load(part.entry.build)(part.options, site).to(torch.float64)
    made.load_state_dict({name: double(tensor) for name, tensor in scheme.state_dict().items()})
    L = x.value.shape[1]
    span = PositionRange(L, L, 0, 0, torch.device("cpu"), torch.float64, visible, site.grid)
    added = made.embed(torch.zeros_like(x.value), span)
    given = widened(x, added.shape[-1])
    return weighted_sum([(1.0, given), (1.0, Approximate(added, torch.zeros_like(added), x.dtype))])


def convolutions(model: Model, recording: Recording, node: Node) -> float:
    """The sequence of one convolutions node."""
    module: Any = model.nodes[node.name]
    source = recording.nodes[node_of(node.edges.reads["input"])].output
    x = exact(source.tensor)
    visible = source.padding.as_visible(source.tensor.shape[1])
    visible = torch.ones(x.value.shape[:2], dtype=torch.bool) if visible is None else visible.cpu()
    for each, convolution in zip(node.options.convolutions, module.convolutions, strict=True):
        B, L, M = x.value.shape
        starts = [t * each.stride - (each.width - 1) // 2 for t in range(-(-L // each.stride))]
        places = torch.tensor([[start + k for k in range(each.width)] for start in starts])  # (T, w)
        inside = (places >= 0) & (places < L)
        places = places.clamp(0, L - 1)
        read = (visible[:, places] & inside).unsqueeze(-1)  # (B, T, w, 1)
        value, error = (part[:, places].where(read, 0.0).reshape(B, len(starts), -1) for part in (x.value, x.error))
        weight = convolution.weight.transpose(1, 2).reshape(each.d_model, each.width * M)
        x = linear(Approximate(value, error, x.dtype), weight, convolution.bias)
        function = load(each.activation.entry.function)
        x = elementwise(x, lambda t, function=function, each=each: function(t, each.activation.options))  # type: ignore[misc]
        visible = visible[:, :: each.stride]
    if module.position is not None:
        x = _with_positions(module.position, node, x, visible)
    return close("convolutions", recording.nodes[node.name].output.tensor, x.value, x.bound, f"`{node.name}`", "its output")


def similarity(model: Model, recording: Recording, node: Node) -> float:
    """The similarities of one node. Each length, product and quotient is off by the rounding of a sum of M terms at most."""
    module: Any = model.nodes[node.name]
    given = [recording.nodes[node_of(node.edges.reads[f"inputs.{at}"])].output.tensor for at in range(2)]
    a, b = (double(each) / double(each).norm(dim=-1, keepdim=True) for each in given)
    scale = float(double(module.scale).exp())
    u_o, u_a = units(given[0].dtype)
    relative = gamma(3 * a.shape[-1] + 8, u_a) + (8 + abs(module.scale.item())) * u_o
    want = Approximate(scale * a @ b.T, scale * (a.abs() @ b.abs().T) * relative, given[0].dtype)
    return close("similarity", recording.nodes[node.name].output.tensor, want.value, want.bound, f"`{node.name}`", "its output")
