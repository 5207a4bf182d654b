"""The entry of the stack, without torch: weights, costs, attention sites and rules, all from the unexpanded layer pattern."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...plugin import Component, NodeKind
from ...slots.cost import Cost, Sizes
from ...slots.layer import Layer, LayerRun, applications, depth, layer_paths, leaves, sequence
from ...slots.node import NodeContext, Rule, Signal
from ...slots.options import NodeRef, field_annotations
from ...slots.parameter import ParameterGroup
from ...slots.position import PositionSite
from ...slots.sublayer import AttentionSite, SublayerContext
from ..sublayer.entries import acts_in_attention, position_site
from ..sublayer.options import CrossAttentionOptions, SelfAttentionOptions
from .options import StackOptions


def sublayer_context(options: StackOptions, context: NodeContext, layer: Layer, sublayer: Component) -> SublayerContext:
    """The widths, causality, position scheme and padding that one sub-layer of a stack depends on."""
    memory = memory_of(options, sublayer)
    signal = context.memories.get(memory) if memory else None
    width = context.signals["input"].width
    keys_padded = signal.padded if signal else context.signals["input"].padded
    return SublayerContext(width, signal.width if signal else None, bool(options.causal), layer.position, keys_padded)


def memory_of(options: StackOptions, sublayer: Component) -> str | None:
    """The node that a sub-layer reads as memory: the one it names, or the stack's."""
    if sublayer.entry.reads != "memory":
        return None
    fields = (name for name, annotation in field_annotations(type(sublayer.options), NodeRef) if annotation.role == "memory")
    named = next((ref for name in fields if (ref := getattr(sublayer.options, name)) is not None), None)
    return named or options.memory


def shared_schemes(options: StackOptions, context: NodeContext) -> list[tuple[Component, PositionSite]]:
    """The position schemes whose tables belong to the whole stack, in the order in which its layers use them."""
    schemes: list[tuple[Component, PositionSite]] = []
    for leaf in leaves(options.layers):
        in_attention = (shared_scheme(options, context, leaf.layer, sublayer) for sublayer in leaf.layer.sublayers or ())
        for pair in (added_scheme(context, leaf.layer), *in_attention):
            if pair is not None and pair not in schemes:
                schemes.append(pair)
    return schemes


def added_scheme(context: NodeContext, layer: Layer) -> tuple[Component, PositionSite] | None:
    """The position scheme whose vectors are added to the input of a layer; None if it has none."""
    acts = layer.position.entry.acts == {"embeddings"}
    return (layer.position, PositionSite(context.signals["input"].width)) if acts else None


def shared_scheme(
    options: StackOptions, context: NodeContext, layer: Layer, sublayer: Component
) -> tuple[Component, PositionSite] | None:
    """The position scheme that a sub-layer shares with the stack, with the site of its tables; None if it shares none."""
    sublayer_options = sublayer.options
    if not isinstance(sublayer_options, SelfAttentionOptions) or isinstance(sublayer_options, CrossAttentionOptions):
        return None
    scheme = layer.position
    if not acts_in_attention(scheme) or scheme.entry.tables(scheme.options) == "layer":
        return None
    site = position_site(sublayer_options, sublayer_context(options, context, layer, sublayer))
    ignores_head_dim = scheme.entry.acts == {"scores"} and not scheme.entry.reads_query
    return scheme, replace(site, head_dim=0) if ignores_head_dim else site  # one table for layers that differ in head_dim only


def stack_parameters(options: StackOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    width = context.signals["input"].width
    groups: list[ParameterGroup] = []
    for leaf in leaves(options.layers):
        groups += layer_parameters(options, context, leaf)
    for number, (scheme, site) in enumerate(shared_schemes(options, context)):
        tables = scheme.entry.parameters(scheme.options, site)
        groups.append(ParameterGroup(tuple(table.under(f"positions.{number}") for table in tables)))
    final = options.final_norm
    groups.append(ParameterGroup(tuple(p.under("final_norm") for p in final.entry.parameters(final.options, width))))
    return tuple(groups)


def layer_parameters(options: StackOptions, context: NodeContext, leaf: LayerRun) -> Iterator[ParameterGroup]:
    layer, width = leaf.layer, context.signals["input"].width
    placement = layer.placement
    assert placement is not None
    gains = placement.entry.constants(placement.options, context.stack).gains if context.stack else {}

    def prefixes() -> Iterator[str]:
        return (f"layers.{number}" for number in leaf.numbers())

    for sublayer in layer.sublayers or ():
        parameters = sublayer.entry.parameters(sublayer.options, sublayer_context(options, context, layer, sublayer))
        dim = sublayer.options.dim(width) if isinstance(sublayer.options, SelfAttentionOptions) else 0
        named = tuple(parameter.under(f"branches.{sublayer.options.name}") for parameter in parameters)
        yield ParameterGroup(named, leaf.times, prefixes, dim, gains)
    names = tuple(sublayer.options.name for sublayer in layer.sublayers or ())
    norms = [
        parameter.under(f"norms.{site}")
        for site in placement.entry.norm_sites(placement.options, names)
        for parameter in layer.norm.entry.parameters(layer.norm.options, width)
    ]
    yield ParameterGroup(tuple(norms), leaf.times, prefixes)


def stack_costs(options: StackOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    """The costs of all layers, summed by term. `residual` counts the output of each sub-layer, kept for the backward pass."""
    terms: dict[str, Cost] = {}
    input_sizes = sizes[""]
    tokens = input_sizes.batch * input_sizes.queries * context.signals["input"].width
    for times, layer in applications(options.layers):
        for sublayer in layer.sublayers or ():
            memory = memory_of(options, sublayer)
            lengths = sizes[memory] if memory else input_sizes
            costs = sublayer.entry.costs(sublayer.options, sublayer_context(options, context, layer, sublayer), lengths)
            for cost in (*costs, Cost("residual", 0, tokens)):
                total = terms.get(cost.term, Cost(cost.term, 0, 0))
                more = cost.times(times)
                terms[cost.term] = Cost(cost.term, total.flops + more.flops, total.elements + more.elements)
    return tuple(terms.values())


def stack_sites(options: StackOptions, context: NodeContext) -> Iterator[tuple[str, AttentionSite]]:
    sites: dict[int, list[tuple[str, AttentionSite]]] = {}  # of each leaf once, however often it is repeated
    for layer in (leaf.layer for leaf in leaves(options.layers)):
        contexts = ((part, sublayer_context(options, context, layer, part)) for part in layer.sublayers or ())
        of_layer = ((part.options.name, part.entry.site(part.options, inner)) for part, inner in contexts)
        sites[id(layer)] = [(name, site) for name, site in of_layer if site is not None]
    if any(sites.values()):
        for index, (_, layer) in enumerate(sequence(options.layers)):
            yield from ((f"{index}.{name}", site) for name, site in sites[id(layer)])


def stack_attends_only(options: StackOptions, context: NodeContext) -> bool:
    """Whether every sub-layer that reads other tokens is an attention site."""
    return all(
        part.entry.reads == "none" or part.entry.site(part.options, sublayer_context(options, context, leaf.layer, part))
        for leaf in leaves(options.layers)
        for part in leaf.layer.sublayers or ()
    )


def stack_rules(options: StackOptions, context: NodeContext) -> tuple[Rule, ...]:
    broken: list[Rule] = []
    reads = [
        memory_of(options, s)
        for leaf in leaves(options.layers)
        for s in leaf.layer.sublayers or ()
        if s.entry.reads == "memory"
    ]
    if options.memory is not None and options.memory not in reads:
        rule = f"no sub-layer reads the memory `{options.memory}`"
        broken.append(("memory", rule, "add a cross_attention to the sub-layers, or remove `memory`"))
    if reads and options.causal is None:
        rule = "a stack that reads a memory must say whether it is causal"
        broken.append(("causal", rule, "write `causal: true` for a decoder that predicts the next token, else `causal: false`"))
    first: dict[tuple[str, str | None], tuple[int, int]] = {}
    for path, layer in layer_paths(options.layers, "layers"):
        broken += _layer_rules(options, context, path, layer)
        broken += _value_residual_rules(options, context, path, layer, first)
    return tuple(broken)


def _value_residual_rules(
    options: StackOptions, context: NodeContext, path: str, layer: Layer, first: dict[tuple[str, str | None], tuple[int, int]]
) -> Iterator[Rule]:
    """Values that are mixed with those of the first layer have their shape. `first` holds (G, V) by sub-layer and memory."""
    for number, sublayer in enumerate(layer.sublayers or ()):
        sublayer_options = sublayer.options
        if isinstance(sublayer_options, SelfAttentionOptions):
            shape = sublayer_options.kv_heads, sublayer_options.values(context.signals["input"].width)
            wanted = first.setdefault((sublayer_options.name, memory_of(options, sublayer)), shape)
            if sublayer_options.value_residual != "none" and shape != wanted:
                (heads, dim), (first_heads, first_dim) = shape, wanted
                rule = f"its values have {heads} heads of {dim} features, those of the first layer {first_heads} of {first_dim}"
                yield f"{path}.sublayers.{number}.value_residual", rule, "give all layers the same num_kv_heads and value_dim"


def _layer_rules(options: StackOptions, context: NodeContext, path: str, layer: Layer) -> Iterator[Rule]:
    sublayers = layer.sublayers or ()
    names = tuple(sublayer.options.name for sublayer in sublayers)
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{path}.sublayers", f"two sub-layers of one layer are named `{name}`", "give one of them another `name`"
    placement = layer.placement
    if placement is not None:
        for reason in placement.entry.unsupported(placement.options, names):
            yield f"{path}.placement", f"{placement.kind}: {reason}", "choose another placement"
        sites = placement.entry.norm_sites(placement.options, names)
        if sites and layer.norm.entry.over_batch and not placement.entry.passes_padding:
            rule = (
                f"{layer.norm.kind} must not count padding, and the placement {placement.kind} does not tell it what is padding"
            )
            yield f"{path}.norm", rule, "choose another norm, or a placement that passes the padding on (`pre`, `post`)"
    if (pair := added_scheme(context, layer)) is not None:
        scheme, site = pair
        for reason in scheme.entry.unsupported(scheme.options, site):
            yield f"{path}.position", f"{scheme.kind}: {reason}", "add the option, or choose another scheme"
        if "additive" not in scheme.entry.claimed(scheme.options):
            rule = f"{scheme.kind} is not added here, and a layer reads the sum of its input and a position"
            yield f"{path}.position", rule, "write `combine: add`, or write it at the tokens node"
    for number, sublayer in enumerate(sublayers):
        where = f"{path}.sublayers.{number}"
        if sublayer.entry.reads == "memory" and memory_of(options, sublayer) is None:
            yield (
                where,
                f"`{sublayer.options.name}` has no memory to read",
                "write `memory: NODE` at the stack or at the sub-layer",
            )
            continue
        for option, rule, fix in sublayer.entry.unsupported(
            sublayer.options, sublayer_context(options, context, layer, sublayer)
        ):
            of_layer = option == "position" and sublayer.entry.reads == "self"
            yield f"{path}.position" if of_layer else f"{where}.{option}", rule, fix


def stack_output(options: StackOptions, context: NodeContext) -> Signal:
    signal = context.signals["input"]
    return replace(signal, depth=depth(options.layers))


STACK = NodeKind(
    name="stack",
    summary="a stack of layers: encoder, decoder or neither",
    reference="https://arxiv.org/abs/1706.03762",
    options=StackOptions,
    inherits=frozenset({"init"}),
    ports=("layers",),
    stepwise=lambda options: bool(options.causal),
    mixes_positions=True,
    attends_only=stack_attends_only,
    output=stack_output,
    parameters=stack_parameters,
    costs=stack_costs,
    sites=stack_sites,
    rules=stack_rules,
    build="tfkit.builtin.node.node_builders:stack",
    source="tfkit.builtin.node:stack.py.jinja",
)
