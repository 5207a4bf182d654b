"""What CTranslate2 cannot express, found in the spec without its weights. The engine itself is not imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...graph import Graph, graph_of
from ...graph.model_graph import Node
from ...slots.layer import Layer, sequence
from ...slots.options import Component
from ...slots.sublayer import changed_settings

if TYPE_CHECKING:
    from ...nn.model import Model

KINDS = ("tokens", "stack", "token_logits", "pool", "dense")
"""The node kinds that have a counterpart."""


@dataclass(frozen=True)
class Shape:
    """The nodes of a model by their role; None for a role that it does not have.

    Args:
        source: the tokens of the encoder.
        encoder: a stack that is not causal.
        target: the tokens of the decoder.
        decoder: a causal stack, with or without an encoder.
        logits: the logits of the decoder.
        pooler: of an encoder without decoder: the dense node after its first vector.
    """

    source: Node | None = None
    encoder: Node | None = None
    target: Node | None = None
    decoder: Node | None = None
    logits: Node | None = None
    pooler: Node | None = None


def shape_of(graph: Graph) -> Shape | None:
    """The roles of the nodes, or None for another graph."""
    nodes = graph.nodes
    by_kind = {kind: [node for node in nodes.values() if node.part.kind == kind] for kind in KINDS}
    if sum(map(len, by_kind.values())) != len(nodes):
        return None
    stacks, logits = by_kind["stack"], by_kind["token_logits"]
    counts = tuple(len(by_kind[kind]) for kind in KINDS)
    if counts == (2, 2, 1, 0, 0):
        decoders = [node for node in stacks if node.options.memory in nodes]
        if len(decoders) != 1:
            return None
        decoder, encoder = decoders[0], nodes[decoders[0].options.memory]
        ends = _reads(logits[0], decoder) and graph.outputs == (logits[0].name,)
        shape = Shape(_input(graph, encoder), encoder, _input(graph, decoder), decoder, logits[0])
        return shape if ends and encoder in stacks and shape.source and shape.target and shape.source != shape.target else None
    if counts == (1, 1, 1, 0, 0):
        decoder = stacks[0]
        whole = decoder.options.causal and _reads(logits[0], decoder) and graph.outputs == (logits[0].name,)
        return Shape(target=_input(graph, decoder), decoder=decoder, logits=logits[0]) if whole else None
    if counts in ((1, 1, 0, 0, 0), (1, 1, 0, 1, 1)) and not stacks[0].options.causal:
        encoder, pooler = stacks[0], next(iter(by_kind["dense"]), None)
        if pooler is not None and not (_reads(by_kind["pool"][0], encoder) and _reads(pooler, by_kind["pool"][0])):
            return None
        allowed = {encoder.name} | ({pooler.name} if pooler else set())
        return Shape(_input(graph, encoder), encoder, pooler=pooler) if set(graph.outputs) <= allowed else None
    return None


def _reads(node: Node, other: Node) -> bool:
    return bool(node.options.input == other.name)


def _input(graph: Graph, stack: Node) -> Node | None:
    """The tokens that a stack reads."""
    node = graph.nodes.get(stack.options.input)
    return node if node is not None and node.part.kind == "tokens" else None


PLACEMENTS = {
    "post": "",
    "pre": "",
    "sandwich": "",
    "parallel": "the engine has parallel sub-layers only in a model without an encoder",
    "deepnorm": "the engine does not multiply the residual",
    "residual_post": "the engine has no norm after a sub-layer without a norm before it",
    "none": "the engine adds the residual only beside a norm",
}
"""Placements with the reason against them; `parallel` is accepted in a model without an encoder."""

ACTIVATIONS = {
    "relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH", "quick_gelu": "GELUSigmoid", "tanh": "Tanh",
    "reglu": "RELU", "geglu": "GELU", "geglu_tanh": "GELUTanh", "swiglu": "SWISH", "glu": "Sigmoid",
}  # fmt: skip
"""Activations, those of gates too, by the engine's names."""

ADDED = ("none", "sinusoidal", "sinusoidal_halves", "learned")
"""Position schemes that are a table of vectors, added to the embeddings."""

ROTARY = {"rotary_half": False, "rotary_interleaved": True}
SCALINGS = ("linear", "ntk", "llama3")
NORMS = ("layer_norm", "rms_norm")
DEFAULT_EPS = {"layer_norm": 1e-5, "rms_norm": 1e-6}
"""The engine's own eps by kind of norm. Otherwise all norms of a model have one eps."""

SUBLAYERS = {True: ("self_attention", "cross_attention", "ffn"), False: ("self_attention", "ffn")}
"""The sub-layers of a layer with and without a memory."""


def refusals(model: Model) -> list[str]:
    """Every reason why CTranslate2 cannot express a model, each with the place in the spec."""
    return reasons(graph_of(model.spec))


def reasons(graph: Graph) -> list[str]:
    """Every reason why CTranslate2 cannot express a model, from its graph alone."""
    shape = shape_of(graph)
    all_reasons = list(_graph(graph, shape))
    has_encoder = shape is None or shape.encoder is not None
    for node in graph.nodes.values():
        if node.part.kind == "tokens":
            all_reasons += _tokens(node, shape)
        elif node.part.kind == "stack":
            all_reasons += _stack(node, has_encoder)
            all_reasons += _two_schemes(graph, node)
        elif shape is not None and node.part.kind in ("pool", "dense"):
            all_reasons += _pooler(node)
    return [*all_reasons, *_eps(graph)]


def _graph(graph: Graph, shape: Shape | None) -> Iterator[str]:
    foreign = [node for node in graph.nodes.values() if node.part.kind not in KINDS]
    for node in foreign:
        yield f"`{node.name}`: the engine has no counterpart of a `{node.part.kind}` node"
    if shape is None and not foreign:
        edges = ", ".join(f"{node.name} ({node.part.kind})" for node in graph.nodes.values())
        yield (
            "nodes: the engine runs an encoder-decoder with one source and one memory, a causal language model, or an encoder"
            f" with an optional pooler; the nodes are {edges}, the outputs {', '.join(graph.outputs)}"
        )


def _tokens(node: Node, shape: Shape | None) -> Iterator[str]:
    options, at = node.options, node.name
    scheme = options.position
    if scheme.entry.acts and scheme.kind not in ADDED:
        yield f"`{at}.position` is {scheme.kind}: the engine adds a table of vectors, or no position, to the embeddings"
    elif getattr(scheme.options, "combine", "add") != "add":
        yield f"`{at}.position.combine` is {scheme.options.combine}: the engine adds positions to the embeddings"
    if options.segments and (shape is None or shape.decoder is not None):
        yield f"`{at}.segments`: the engine has segments only in an encoder without a decoder"
    elif options.segments and options.factor != 1.0:
        yield f"`{at}.scale` is {options.factor:g}: with segments, the engine multiplies these too"
    yield from _norm(f"{at}.embedding_norm", options.embedding_norm)
    if shape is not None and node is shape.target:
        if options.start_id is None and shape.encoder is not None:
            yield f"`{at}.start_id` is missing: the engine starts a text with this token"
        if options.end_id is None:
            yield f"`{at}.end_id` is missing: the engine ends a text with this token"


def _pooler(node: Node) -> Iterator[str]:
    options, at = node.options, node.name
    if node.part.kind == "pool":
        if options.take != "first" or options.output_norm.kind != "none":
            yield f"`{at}`: the engine's pooler reads the first vector, without a norm"
        return
    if options.activation.kind not in ACTIVATIONS:
        yield f"`{at}.activation` is {options.activation.kind}: the engine has {', '.join(ACTIVATIONS)}"
    if options.output_norm.kind != "none":
        yield f"`{at}.output_norm`: the engine's pooler has no norm"


def _stack(node: Node, has_encoder: bool) -> Iterator[str]:
    options = node.options
    decodes = options.memory is not None or bool(options.causal)
    if options.memory is not None and not options.causal:
        yield f"`{node.name}.causal` is false: the engine's decoder is causal"
    if has_encoder and options.memory is None and options.causal:
        yield f"`{node.name}.causal` is true: the engine's encoder sees all tokens"
    yield from _norm(f"{node.name}.final_norm", options.final_norm)
    layers = [layer for _, layer in sequence(options.layers)]
    distinct = {id(layer): layer for layer in layers}.values()
    yield from dict.fromkeys(reason for layer in distinct for reason in _layer(node, layer, decodes, has_encoder))
    for name, values in _uniform(layers).items():
        if len(set(values)) > 1:
            listed = ", ".join(dict.fromkeys(values))
            yield f"`{node.name}.layers`: {name} differs between layers ({listed}); the engine has one"


def _layer(node: Node, layer: Layer, decodes: bool, has_encoder: bool) -> Iterator[str]:
    at, placement = node.name, layer.placement
    assert placement is not None
    if placement.kind not in PLACEMENTS:
        yield f"`{at}.placement` is {placement.kind}: the engine has {', '.join(list(PLACEMENTS)[:4])}"
    elif PLACEMENTS[placement.kind] and not (placement.kind == "parallel" and decodes and not has_encoder):
        yield f"`{at}.placement` is {placement.kind}: {PLACEMENTS[placement.kind]}"
    if not getattr(placement.options, "residual", True):
        yield f"`{at}.placement.residual` is false: the engine adds the input of every sub-layer to its output"
    if layer.norm.kind != "none" or placement.kind != "none":
        yield from _norm(f"{at}.norm", layer.norm, needed=True)
    kinds = tuple(sublayer.kind for sublayer in layer.sublayers or ())
    wanted = SUBLAYERS[node.options.memory is not None]
    if kinds != wanted:
        yield f"`{at}.layers`: the sub-layers are {', '.join(kinds)}; the engine has {', '.join(wanted)}, in this order"
    width = node.context.signals["input"].width
    for sublayer in layer.sublayers or ():
        name = f"{at}.{sublayer.options.name}"
        if sublayer.options.residual_scale != 1.0:
            yield f"`{name}.residual_scale` is {sublayer.options.residual_scale:g}: the engine adds sub-layers unscaled"
        if sublayer.kind == "ffn" and sublayer.options.activation.kind not in ACTIVATIONS:
            yield f"`{name}.activation` is {sublayer.options.activation.kind}: the engine has {', '.join(ACTIVATIONS)}"
        elif sublayer.kind in ("self_attention", "cross_attention"):
            yield from _attention(name, sublayer.options, width)
            yield from _window(name, sublayer.options.window, decodes, has_encoder)
        if sublayer.kind == "cross_attention":
            if sublayer.options.memory not in (None, node.options.memory):
                yield f"`{name}.memory` is {sublayer.options.memory}: the engine's decoder reads one memory"
            if sublayer.options.query_key_norm.kind != "none":
                yield f"`{name}.query_key_norm`: the engine norms the queries of cross-attention over all heads together"
            if sublayer.options.position.entry.acts:
                yield f"`{name}.position` is {sublayer.options.position.kind}: the engine has no positions in cross-attention"
    yield from _position(at, layer.position, decodes)


def _attention(name: str, options: Any, width: int) -> Iterator[str]:
    if options.values(width) != options.dim(width):
        yield f"`{name}.value_dim` is {options.value_dim}: the engine's value heads have head_dim {options.dim(width)} features"
    for setting, value in changed_settings(options).items():
        if setting != "dropout":
            logits = "a softcap only for logits" if setting == "softcap" else f"no {setting}"
            yield f"`{name}.{setting}` is {value:g}: the engine has {logits}"
    if options.sink:
        yield f"`{name}.sink`: the engine has no attention sinks"
    for field in ("output_gate", "value_residual", "shared_projection"):
        if getattr(options, field) != "none":
            yield f"`{name}.{field}` is {getattr(options, field)}: the engine has none"
    if not options.output_projection:
        yield f"`{name}.output_projection` is false: the engine has one in every attention"
    if options.score.kind != "dot":
        yield f"`{name}.score` is {options.score.kind}: the engine has the dot product"
    if options.query_key_norm.kind != "none":
        yield from _norm(f"{name}.query_key_norm", options.query_key_norm)
        if options.query_key_norm_over != "each_head":
            yield f"`{name}.query_key_norm_over` is {options.query_key_norm_over}: the engine norms each head"


def _window(name: str, window: Any, decodes: bool, has_encoder: bool) -> Iterator[str]:
    if window is None:
        return
    if not decodes:
        yield f"`{name}.window`: the engine's encoder has no window"
    elif not has_encoder:
        yield f"`{name}.window`: the engine reads a prompt in pieces, and its window then depends on where a piece starts"
    elif not isinstance(window, int) and (window[0] is None or window[1] != 0):
        yield f"`{name}.window` is {list(window)}: the engine's window ends at the query; write a number of keys"


def _position(at: str, scheme: Component, decodes: bool) -> Iterator[str]:
    options = scheme.options
    if not scheme.entry.acts or scheme.kind == "relative_shaw":
        return
    if "embeddings" in scheme.entry.acts:
        yield f"`{at}.position` is {scheme.kind}: the engine adds positions to embeddings, not to the input of every layer"
    elif scheme.kind == "alibi":
        if not decodes:
            yield f"`{at}.position` is alibi: the engine has ALiBi only in the decoder"
    elif scheme.kind == "relative_t5":
        if options.tables != "stack":
            yield f"`{at}.position.tables` is {options.tables}: the engine has one table for a stack"
    elif scheme.kind not in ROTARY:
        yield f"`{at}.position` is {scheme.kind}: the engine has rotary positions, relative_t5, relative_shaw and alibi"
    elif options.scaling is not None and options.scaling.kind not in SCALINGS:
        yield f"`{at}.position.scaling` is {options.scaling.kind}: the engine has {', '.join(SCALINGS)}"


def _uniform(layers: list[Layer]) -> dict[str, list[str]]:
    """By name, the values of all layers of what the engine keeps once for a stack."""
    options = [(sublayer.kind, sublayer.options) for layer in layers for sublayer in layer.sublayers or ()]
    return {
        "placement": [str(layer.placement.written() if layer.placement else "none") for layer in layers],
        "position": ["rotary" if layer.position.kind in ROTARY else str(layer.position.written()) for layer in layers],
        "num_heads": [
            str(sublayer_options.num_heads)
            for kind, sublayer_options in options
            if kind in ("self_attention", "cross_attention")
        ],
        "window": [str(sublayer_options.window) for kind, sublayer_options in options if kind == "self_attention"],
        "activation": [sublayer_options.activation.kind for kind, sublayer_options in options if kind == "ffn"],
    }


def _two_schemes(graph: Graph, stack: Node) -> Iterator[str]:
    tokens = graph.nodes.get(stack.options.input)
    if tokens is None or tokens.part.kind != "tokens" or not tokens.options.position.entry.acts:
        return
    inside = next((layer.position for _, layer in sequence(stack.options.layers) if layer.position.entry.acts), None)
    if inside is not None and "embeddings" not in inside.entry.acts:
        yield (
            f"`{tokens.name}.position` is {tokens.options.position.kind} and `{stack.name}.position` {inside.kind}:"
            " the engine has one position scheme for a stack and its input"
        )


def _norm(at: str, norm: Component, needed: bool = False) -> Iterator[str]:
    if norm.kind not in NORMS and (needed or norm.kind != "none"):
        yield f"`{at}` is {norm.kind}: the engine has {' and '.join(NORMS)}"


def norms_of(graph: Graph) -> Iterator[tuple[str, Component]]:
    """Every norm of a graph, with its place in the spec."""
    for node in graph.nodes.values():
        for name in ("embedding_norm", "final_norm"):
            if (norm := getattr(node.options, name, None)) is not None:
                yield f"{node.name}.{name}", norm
        for _, layer in sequence(getattr(node.options, "layers", ())):
            yield f"{node.name}.norm", layer.norm
            for sublayer in layer.sublayers or ():
                if (norm := getattr(sublayer.options, "query_key_norm", None)) is not None:
                    yield f"{node.name}.{sublayer.options.name}.query_key_norm", norm


def common_eps(graph: Graph) -> float | None:
    """The eps that all norms of a model share; None if each kind has the engine's own."""
    eps_values = {norm.options.eps for _, norm in norms_of(graph) if norm.kind in NORMS}
    return eps_values.pop() if len(eps_values) == 1 else None


def _eps(graph: Graph) -> Iterator[str]:
    norms = dict.fromkeys((at, norm.kind, norm.options.eps) for at, norm in norms_of(graph) if norm.kind in NORMS)
    if len({eps for _, _, eps in norms}) > 1 and any(DEFAULT_EPS[kind] != eps for _, kind, eps in norms):
        listed = ", ".join(f"`{at}.eps` {eps:g}" for at, _, eps in norms)
        yield f"{listed}: the engine has one eps for all norms, or 1e-05 for layer_norm with 1e-06 for rms_norm"
