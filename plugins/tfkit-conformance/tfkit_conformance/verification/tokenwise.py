"""Checks of modules that act on each token alone: projections, feed-forward layers, norms, embeddings, dense nodes, logits.

Each is computed again in float64 from its recorded input, by the equation that the spec names, and compared within the bound
of `tfkit_conformance.verification.approximate`:

    projection     y = W x + b
    feed-forward   y = W_2 f(W_1 x + b_1) + b_2, gated W_2 (f(W_g x + b_g) * (W_1 x + b_1)) + b_2; each token alone, to the bit
    norm           layer norm, batch norm and RMS norm by their definitions; another norm is not evaluated here
    embedding      scale E[id] + S[segment] + p(position)
    dense          f(W x + b)
    logits         softcap(scale x E^T + b)
    spans          W x + b, and the smallest number at positions that cannot be chosen
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfkit import Graph, Model
from tfkit.inspection import Classify, Dense, Node, SpanLogits, TokenLogits, Tokens
from tfkit.plugin import Component
from tfkit.plugin.model_parts import FeedForward, PositionRange, PositionSite, load

from ..attention.bound import gamma
from ..differences import double
from ..finding import Violation
from .approximate import (
    Approximate,
    batch_norm,
    elementwise,
    exact,
    layer_norm,
    linear,
    product,
    rms_norm,
    units,
    weighted_sum,
    widened,
)
from .expected import ExpectedLayer, ExpectedSite, node_of
from .recording import Call, Recording
from .row import NotApplicable, close, same


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
    exact_scheme: Any = load(part.entry.build)(part.options, site).to(torch.float64)
    exact_scheme.load_state_dict({name: double(tensor) for name, tensor in scheme.state_dict().items()})
    L = x.value.shape[1]
    span = PositionRange(L, L, 0, 0, torch.device("cpu"), torch.float64, visible, site.grid)
    added = exact_scheme.embed(torch.zeros_like(x.value), span)
    padded = widened(x, added.shape[-1])
    return weighted_sum([(1.0, padded), (1.0, Approximate(added, torch.zeros_like(added), x.dtype))])


def convolutions(model: Model, recording: Recording, node: Node) -> float:
    """The sequence of one convolutions node."""
    module: Any = model.nodes[node.name]
    source = recording.nodes[node_of(node.edges.reads["input"])].output
    x = exact(source.tensor)
    visible = source.padding.as_visible(source.tensor.shape[1])
    visible = torch.ones(x.value.shape[:2], dtype=torch.bool) if visible is None else visible.cpu()
    for options, convolution in zip(node.options.convolutions, module.convolutions, strict=True):
        B, L, M = x.value.shape
        starts = [t * options.stride - (options.width - 1) // 2 for t in range(-(-L // options.stride))]
        places = torch.tensor([[start + k for k in range(options.width)] for start in starts])  # (T, w)
        inside = (places >= 0) & (places < L)
        places = places.clamp(0, L - 1)
        read = (visible[:, places] & inside).unsqueeze(-1)  # (B, T, w, 1)
        value, error = (part[:, places].where(read, 0.0).reshape(B, len(starts), -1) for part in (x.value, x.error))
        weight = convolution.weight.transpose(1, 2).reshape(options.d_model, options.width * M)
        x = linear(Approximate(value, error, x.dtype), weight, convolution.bias)
        function = load(options.activation.entry.function)
        x = elementwise(x, lambda t, function=function, options=options: function(t, options.activation.options))  # type: ignore[misc]
        visible = visible[:, :: options.stride]
    if module.position is not None:
        x = _with_positions(module.position, node, x, visible)
    return close("convolutions", recording.nodes[node.name].output.tensor, x.value, x.bound, f"`{node.name}`", "its output")


def similarity(model: Model, recording: Recording, node: Node) -> float:
    """The similarities of one node. Each length, product and quotient is off by the rounding of a sum of M terms at most."""
    module: Any = model.nodes[node.name]
    inputs = [recording.nodes[node_of(node.edges.reads[f"inputs.{at}"])].output.tensor for at in range(2)]
    a, b = (double(tensor) / double(tensor).norm(dim=-1, keepdim=True) for tensor in inputs)
    scale = float(double(module.scale).exp())
    u_o, u_a = units(inputs[0].dtype)
    relative = gamma(3 * a.shape[-1] + 8, u_a) + (8 + abs(module.scale.item())) * u_o
    want = Approximate(scale * a @ b.T, scale * (a.abs() @ b.abs().T) * relative, inputs[0].dtype)
    return close("similarity", recording.nodes[node.name].output.tensor, want.value, want.bound, f"`{node.name}`", "its output")


def projections(recording: Recording, expected: ExpectedSite) -> float:
    """Query, key, value and output projections of one site."""
    stack, index, name = expected.name.split(".", 2)
    parts = recording.layers[stack, int(index)].parts
    worst = 0.0
    matrices = dict.fromkeys(expected.options.matrix(tensor) for tensor in ("query", "key", "value"))
    for projection in (*matrices, "output") if expected.options.output_projection else matrices:
        for call in parts[f"branches.{name}.{projection}"]:
            want = linear(exact(call.x), _weight(call.module), _bias(call.module))
            words = f"the {projection} projection of {expected.name}: {recording.weight_of(call.module)}"
            worst = max(worst, close("projection", call.output, want.value, want.bound, words, "its output"))
    return worst


def feed_forward(recording: Recording, expected: ExpectedLayer, name: str) -> float:
    """One feed-forward layer by the activation that the spec names, and each of its tokens alone."""
    call = recording.layers[expected.stack, expected.index].parts[f"branches.{name}"][0]
    module, part = call.module, expected.sublayers[name]
    words = f"{expected.stack}.{expected.index}.{name}"
    if not isinstance(module, FeedForward):
        raise NotApplicable(f"no equation is known for the sub-layer `{part.kind}`")
    activation = part.options.activation
    x = exact(call.x)
    inner = linear(x, module.input.weight, module.input.bias)
    if activation.entry.gated:
        if module.gate is None:
            raise Violation("feed-forward", f"{words}: `{activation.kind}` is gated, and there is no gate")
        gate = elementwise(linear(x, module.gate.weight, module.gate.bias), _function(activation))
        features = product(gate, inner)
    else:
        features = elementwise(inner, _function(activation))
    want = linear(features, module.output.weight, module.output.bias)
    weights = ", ".join(
        recording.weight_of(projection) for projection in (module.input, module.gate, module.output) if projection is not None
    )
    told = f"{words} with {activation.kind}: {weights}"
    worst = close("feed-forward", call.output, want.value, want.bound, told, "its output")
    _tokens_alone(call, words)
    return worst


@torch.no_grad()
def _tokens_alone(call: Call, words: str) -> None:
    """Changing all tokens but every third leaves those as they were, to the bit."""
    kept = torch.arange(call.x.shape[1], device=call.x.device) % 3 == 1
    changed = torch.where(kept[:, None], call.x, call.x.flip(1) * 0.5 + 1.0)
    again = call.module(changed, *call.arguments[1:])
    same("feed-forward", again[:, kept], call.output[:, kept], f"{words}: a token must not depend on others", "its output")


def norm(call: Call, part: Component, words: str) -> float:
    """One application of a norm."""
    options: Any = part.options
    if part.kind == "layer_norm":
        want = layer_norm(call.x, _weight(call.module), _bias(call.module) if options.bias else None, options.eps)
    elif part.kind == "rms_norm":
        want = rms_norm(call.x, _weight(call.module), options.eps, options.unit_offset)
    elif part.kind == "batch_norm":
        mean, variance = (call.module.get_buffer(f"running_{name}") for name in ("mean", "var"))
        scale, shift = (_weight(call.module), _bias(call.module)) if options.affine else (None, None)
        want = batch_norm(call.x, mean, variance, scale, shift, options.eps)
    else:
        raise NotApplicable(f"no equation is known for the norm `{part.kind}`")
    return close("norm", call.output, want.value, want.bound, f"{part.kind} {words}", "its output")


def embedding(model: Model, recording: Recording, node: Node) -> float:
    """The vectors of one tokens node, before its norm."""
    module, call, options = model.nodes[node.name], recording.nodes[node.name], node.options
    if not isinstance(module, Tokens):
        raise NotApplicable(f"no equation is known for the node `{node.part.kind}`")
    ids, rows = recording.batch.ids[node.name].cpu(), recording.batch.segments
    table = _table(model, node)
    x = weighted_sum([(options.factor, exact(table.cpu()[ids]))])
    terms = [(1.0, x)]
    if options.segments:
        segments = _child(module, "segments")
        terms.append((1.0, exact(_weight(segments).cpu()[rows[node.name].cpu()])))
    position = options.position
    if position.entry.acts:
        visible = recording.batch.visible[node.name].cpu()
        terms.append((1.0, added(_child(module, "position"), position, table.shape[1], visible, table.dtype)))
    width = max(term.value.shape[-1] for _, term in terms)  # a scheme may append features
    terms = [(factor, widened(term, width)) for factor, term in terms]
    want = weighted_sum(terms) if len(terms) > 1 else x
    normed = recording.inner.get((node.name, "embedding_norm"), [])
    got = normed[0].x if normed else call.output.tensor
    if normed:
        same("embedding", call.output.tensor, normed[0].output, f"`{node.name}` gives its norm's output", "its output")
    place = f"`{node.name}` before its norm" if normed else f"`{node.name}`"
    return close("embedding", got, want.value, want.bound, f"{place}: {_table_name(recording, model, node)}", "its output")


def added(scheme: nn.Module, part: Component, width: int, visible: Tensor, dtype: torch.dtype) -> Approximate:
    """p(position), from the spec's scheme made anew in float64; only schemes that add or append can be evaluated so."""
    B, L = visible.shape
    span = PositionRange(L, L, 0, 0, torch.device("cpu"), torch.float64, visible)
    exact_scheme: Any = load(part.entry.build)(part.options, PositionSite(width)).to(torch.float64)
    exact_scheme.load_state_dict({name: double(tensor) for name, tensor in scheme.state_dict().items()})
    with torch.no_grad():
        x = torch.randn(B, L, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        nothing = exact_scheme.embed(torch.zeros_like(x), span)
        wide = functional.pad(x, (0, nothing.shape[-1] - x.shape[-1]))
        if not torch.allclose(exact_scheme.embed(x, span) - wide, nothing, rtol=0, atol=1e-9):
            raise NotApplicable(f"`{part.kind}` here does more than add to an embedding")
    zero = torch.zeros_like(nothing)
    return weighted_sum([(1.0, Approximate(nothing, zero, dtype))])


def dense(model: Model, recording: Recording, node: Node) -> float:
    """The linear map and the activation of a dense or classifying node, before its norm."""
    module = model.nodes[node.name]
    if not isinstance(module, (Dense, Classify)):
        raise NotApplicable(f"no equation is known for the node `{node.part.kind}`")
    tensor = recording.nodes[node_of(node.edges.reads["input"])].output.tensor
    want = linear(exact(tensor), module.linear.weight, module.linear.bias)
    if isinstance(module, Dense) and node.options.activation.kind != "identity":
        want = elementwise(want, _function(node.options.activation))
    normed = recording.inner.get((node.name, "output_norm"), [])
    got = normed[0].x if normed else recording.nodes[node.name].output.tensor
    words = f"`{node.name}`: {recording.weight_of(module.linear)}"
    return close("dense", got, want.value, want.bound, words, "its output")


def logits(model: Model, recording: Recording, node: Node) -> float:
    """Scores over a vocabulary, by the table that the spec names."""
    module = model.nodes[node.name]
    if not isinstance(module, TokenLogits):
        raise NotApplicable(f"no equation is known for the node `{node.part.kind}`")
    tensor, options = recording.nodes[node_of(node.edges.reads["input"])].output.tensor, node.options
    scale = options.scale if isinstance(options.scale, float) else float(tensor.shape[-1]) ** -0.5
    x = exact(tensor) if scale == 1.0 else weighted_sum([(scale, exact(tensor))])
    want = linear(x, _table(model, node), module.bias)
    if options.softcap is not None:
        cap = options.softcap
        want = elementwise(want, lambda t: cap * torch.tanh(t / cap))
    words = f"`{node.name}`: {_table_name(recording, model, node)}"
    return close("logits", recording.nodes[node.name].output.tensor, want.value, want.bound, words, "its output")


def spans(model: Model, recording: Recording, node: Node) -> float:
    """Start and end logits, and the positions that cannot be chosen."""
    module = model.nodes[node.name]
    if not isinstance(module, SpanLogits):
        raise NotApplicable(f"no equation is known for the node `{node.part.kind}`")
    read = recording.nodes[node_of(node.edges.reads["input"])].output
    want, got = linear(exact(read.tensor), module.linear.weight, module.linear.bias), recording.nodes[node.name].output.tensor
    visible = read.padding.as_visible(read.tensor.shape[1])
    allowed = torch.ones(got.shape[:2], dtype=torch.bool) if visible is None else visible.cpu().clone()
    if node.options.choose == "second_text":
        ids, end_id = recording.batch.ids[node.options.tokens].tolist(), node.context.targets["tokens"].end_id
        for row, real in zip(ids, allowed, strict=True):
            places = [t for t in range(len(row)) if real[t]]
            ends = [t for t in places if row[t] == end_id]
            for t in places[1:]:
                real[t] = bool(ends) and t > ends[0] and row[t] != end_id
    least = torch.finfo(got.dtype).min
    same("spans", got[~allowed], torch.full_like(got[~allowed], least), f"`{node.name}`: positions to hide", "its output")
    words = f"`{node.name}`: {recording.weight_of(module.linear)}"
    return close("spans", got[allowed], want.value[allowed], want.bound[allowed], words, "its output")


def _table_name(recording: Recording, model: Model, node: Node) -> str:
    module: Any = model.nodes[node.edges.owner or node.name]
    table: Any = module.embedding if isinstance(module, Tokens) else module.logits
    return recording.weight_of(table)


def _table(model: Model, node: Node) -> Tensor:
    """The table that a node uses: its own, or that of the node at the end of `share`."""
    module: Any = model.nodes[node.edges.owner or node.name]
    weight: Tensor = module.table() if isinstance(module, Tokens) else module.logits.weight
    return weight.detach()


def _function(activation: Component) -> Callable[[Tensor], Tensor]:
    function = load(activation.entry.function)
    return lambda x: function(x, activation.options)


def _child(module: nn.Module, name: str) -> nn.Module:
    child = dict(module.named_children()).get(name)
    if child is None:
        raise Violation("embedding", f"the spec has `{name}`, but the module has none")
    return child


def _weight(module: nn.Module) -> Tensor:
    return dict(module.named_parameters())["weight"]


def _bias(module: nn.Module) -> Tensor | None:
    return dict(module.named_parameters()).get("bias")


def tokenwise_nodes(graph: Graph) -> dict[str, Callable[[Model, Recording, Node], float]]:
    """The check of every node that has an equation of its own, by node."""
    kinds = {
        "tokens": embedding,
        "dense": dense,
        "classify": dense,
        "token_logits": logits,
        "span_logits": spans,
        "patches": patches,
        "convolutions": convolutions,
        "similarity": similarity,
    }
    return {name: kinds[node.part.kind] for name, node in graph.nodes.items() if node.part.kind in kinds}
