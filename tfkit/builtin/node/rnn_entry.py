"""The recurrent node, without torch: its weights, costs, attention site and rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from ...plugin import (
    Cell,
    CellSite,
    Component,
    NodeKind,
    OneOf,
    Options,
    Parameter,
    Probability,
    Size,
    SlotField,
    component_default,
    linear,
)
from ...slots.cost import Cost, Sizes
from ...slots.node import NodeContext, Rule, Signal
from ...slots.options import AsTuple, NodeRef, SlotListField
from ...slots.parameter import ParameterGroup
from ...slots.score import ScoreSite
from ...slots.sublayer import AttentionSite
from .options import Init, Input


class LocalOptions(Options):
    """Local attention with a predicted position, Luong's local-p."""

    half_width: Annotated[
        Size, Field(description="D: keys up to D tokens from the centre are seen, with a Gaussian of standard deviation D / 2")
    ]


class RnnAttentionOptions(Options):
    """Attention of a recurrent decoder to its memory. States and memory are queries, keys and values as they are."""

    attend: Annotated[
        str,
        OneOf("before_cell", "between_cells", "after_cell"),
        Field(
            description="which state asks: the one `before_cell` (Bahdanau), `between_cells`, two of them (conditional GRU), "
            "or `after_cell` (Luong)"
        ),
    ] = "before_cell"
    input_feeding: Annotated[bool, Field(description="whether the read-out is an input of the next step")] = False
    score: Annotated[Component, SlotField("score"), Field(description="score function")] = component_default("dot")
    scale: Annotated[float | str, OneOf("inverse_sqrt_head_dim", number=True), Field(description="factor of q.k")] = 1.0
    local: Annotated[
        LocalOptions | None,
        Field(description="attention to a window around a position that the state predicts (Luong's local-p)"),
    ] = None
    dropout: Annotated[Probability, Field(description="dropout of the attention weights")] = 0.0
    backend: Annotated[Any, SlotListField("backend"), Field(description="attention backend, or several to fall back on")] = (
        component_default("auto")
    )


class InitialStateOptions(Options):
    """The first state of a recurrent decoder, from its memory."""

    take: Annotated[
        str,
        OneOf("zeros", "last", "mean", "first_backward", "states"),
        Field(
            description="tanh(W v + b) of the `last` token, the `mean`, or the first token of a backward cell; or the last "
            "`states` of the encoder, layer by layer, as they are"
        ),
    ] = "zeros"
    bias: Annotated[bool, Field(description="whether the projection has a bias")] = True


class ReadoutOptions(Options):
    """The layer between the state of a decoder and its logits."""

    kind: Annotated[str, OneOf("linear", "tanh", "maxout"), Field(description="function of the sum of the linear maps")]
    d_model: Annotated[Size, Field(description="output width")]
    reads: Annotated[
        tuple[Annotated[str, OneOf("state", "input", "context")], ...] | None,
        Field(min_length=1, description="what it reads; unless written all there is: state, input token, context"),
        AsTuple,
    ] = None
    state: Annotated[
        str, OneOf("new", "previous"), Field(description="the state after this step, or the one before it (Bahdanau)")
    ] = "new"
    bias: bool = True
    dropout: Annotated[Probability, Field(description="dropout of the output")] = 0.0


class RnnOptions(Options):
    """A recurrent network: an encoder, a language model, or a decoder with a memory."""

    input: Input
    memory: Annotated[
        str | None, NodeRef("memory"), Field(description="a sequence to attend to, or one vector that enters every step")
    ] = None
    cell: Annotated[Component, SlotField("cell"), Field(description="recurrent cell")]
    d_state: Annotated[Size, Field(description="features of a state, per direction")]
    num_layers: Annotated[Size, Field(description="number of layers", le=64)] = 1
    bidirectional: Annotated[bool, Field(description="whether a second cell reads each layer from right to left")] = False
    cross_attention: Annotated[RnnAttentionOptions | None, Field(description="attention to a memory that is a sequence")] = None
    initial_state: Annotated[InitialStateOptions, Field(description="the state before the first token")] = InitialStateOptions()
    initial_width: Annotated[
        Size | None,
        Field(description="with `first_backward`: how many of the memory's last features are the backward state"),
    ] = None
    readout: Annotated[ReadoutOptions | None, Field(description="the layer after the recurrence")] = None
    dropout: Annotated[Probability, Field(description="dropout of the outputs of every layer, not inside the recurrence")] = 0.0
    init: Init = component_default("orthogonal")


def cell_of(options: RnnOptions) -> Cell:
    return options.cell.entry  # type: ignore[no-any-return]


def output_width(options: RnnOptions) -> int:
    """Features of the outputs of the layers."""
    return options.d_state * (2 if options.bidirectional else 1)


def memory_signal(context: NodeContext) -> Signal | None:
    return context.signals.get("memory")


def context_width(options: RnnOptions, context: NodeContext) -> int:
    """Features of the context: what the attention gives, or the vector that enters every step; 0 if there is none."""
    memory = memory_signal(context)
    if memory is None or (memory.length is not None and options.cross_attention is None):
        return 0
    return memory.width


def readout_parts(options: RnnOptions, context: NodeContext) -> dict[str, int]:
    """The width of everything that the read-out may read."""
    parts = {"state": options.d_state, "input": context.signals["input"].width}
    width = context_width(options, context)
    return parts | ({"context": width} if width else {})


def readout_reads(options: RnnOptions, context: NodeContext) -> tuple[str, ...]:
    assert options.readout is not None
    return options.readout.reads or tuple(readout_parts(options, context))


def cell_sites(options: RnnOptions, context: NodeContext) -> Iterator[CellSite]:
    """The site of the cell of each layer."""
    first = [context.signals["input"].width]
    attention, memory = options.cross_attention, memory_signal(context)
    if attention is not None and attention.attend == "before_cell":
        first.append(context_width(options, context))
    elif attention is not None and attention.input_feeding and options.readout is not None:
        first.append(options.readout.d_model)
    elif attention is None and memory is not None and memory.length is None:
        first.append(memory.width)
    yield CellSite(tuple(first), options.d_state)
    for _ in range(1, options.num_layers):
        yield CellSite((output_width(options),), options.d_state)


def context_cell_site(options: RnnOptions, context: NodeContext) -> CellSite | None:
    """The site of the second cell of `between_cells`."""
    attention = options.cross_attention
    if attention is None or attention.attend != "between_cells":
        return None
    return CellSite((context_width(options, context),), options.d_state)


def score_site(options: RnnOptions, context: NodeContext) -> ScoreSite:
    return ScoreSite(1, options.d_state, context.signals["memory"].width)


def initial_width(options: RnnOptions, context: NodeContext) -> int:
    """Features of the vector of the memory that gives the first state."""
    if options.initial_state.take != "first_backward":
        return context.signals["memory"].width
    if options.initial_width is not None:
        return options.initial_width
    encoder = context.targets.get("memory")
    return encoder.d_state if isinstance(encoder, RnnOptions) else context.signals["memory"].width


def projects_initial(options: RnnOptions) -> bool:
    return options.initial_state.take not in ("zeros", "states")


def _output(options: RnnOptions, context: NodeContext) -> Signal:
    width = options.readout.d_model if options.readout is not None else output_width(options)
    signal = context.signals["input"]
    layers = replace(signal.wide(output_width(options)), depth=options.num_layers)
    return replace(signal.wide(width), layers=layers)


def _parameters(options: RnnOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    cell, cell_options = cell_of(options), options.cell.options
    parameters: list[Parameter] = []
    for number, site in enumerate(cell_sites(options, context)):
        for side in ("cell", "backward_cell") if options.bidirectional else ("cell",):
            parameters += [parameter.under(f"layers.{number}.{side}") for parameter in cell.parameters(cell_options, site)]
    if (second := context_cell_site(options, context)) is not None:
        parameters += [parameter.under("context_cell") for parameter in cell.parameters(cell_options, second)]
    if options.cross_attention is not None:
        score = options.cross_attention.score
        weights = score.entry.parameters(score.options, score_site(options, context))
        parameters += [parameter.under("cross_attention.score") for parameter in weights]
        if options.cross_attention.local is not None:
            parameters.append(
                Parameter("cross_attention.local.query.weight", "score_query", (options.d_state, options.d_state))
            )
            parameters.append(Parameter("cross_attention.local.out.weight", "score_out", (1, options.d_state)))
    if projects_initial(options):
        features = options.num_layers * cell.states * options.d_state
        parameters += linear(
            "initial.linear", "initial_state", initial_width(options, context), features, options.initial_state.bias
        )
    if (readout := options.readout) is not None:
        parts = readout_parts(options, context)
        inner = sum(parts.get(name, 0) for name in readout_reads(options, context))
        outer = readout.d_model * (2 if readout.kind == "maxout" else 1)
        parameters += linear("readout.linear", "readout", inner, outer, readout.bias)
    return (ParameterGroup(tuple(parameters)),)


def _costs(options: RnnOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    """FLOPs of the products. Kept for a backward pass: about the gates and the state of every step."""
    input_sizes, cell, N = sizes[""], cell_of(options), options.d_state
    tokens = input_sizes.batch * input_sizes.queries
    sides = 2 if options.bidirectional else 1
    sites = [*cell_sites(options, context)]
    second = context_cell_site(options, context)
    flops = sum(2 * tokens * cell.gates * N * (site.width + N) * sides for site in sites)
    constant = sites[0].inputs[1] if options.cross_attention is None and len(sites[0].inputs) > 1 else 0
    # A vector that enters every step is multiplied once.
    flops -= 2 * input_sizes.batch * (input_sizes.queries - 1) * cell.gates * N * constant
    elements = tokens * N * (2 * cell.gates + cell.states) * sides * len(sites)
    if second is not None:
        flops += 2 * tokens * cell.gates * N * (second.width + N)
        elements += tokens * N * (2 * cell.gates + cell.states)
    costs = [Cost("recurrence", flops, elements)]
    if options.cross_attention is not None and options.memory is not None:
        where, score = sizes[options.memory], options.cross_attention.score
        pairs = where.batch * where.queries * where.keys
        scores = score.entry.costs(score.options, score_site(options, context), 1, where)
        width = context_width(options, context)
        flops, elements = scores.flops + 2 * pairs * width, scores.elements + pairs + tokens * width
        if options.cross_attention.local is not None:  # every key comes twice
            flops, elements = 2 * flops + 2 * tokens * N * (N + 1), 2 * elements + tokens * N
        costs.append(Cost("attention", flops, elements))
    outside = 0
    if projects_initial(options):
        outside += 2 * input_sizes.batch * initial_width(options, context) * options.num_layers * cell.states * N
    if (readout := options.readout) is not None:
        inner = sum(readout_parts(options, context).get(name, 0) for name in readout_reads(options, context))
        outside += 2 * tokens * inner * readout.d_model * (2 if readout.kind == "maxout" else 1)
        elements = tokens * (inner + 2 * readout.d_model)
        costs.append(Cost("readout", outside, elements))
    elif outside:
        costs.append(Cost("readout", outside, 0))
    return tuple(costs)


def _sites(options: RnnOptions, context: NodeContext) -> Iterator[tuple[str, AttentionSite]]:
    attention = options.cross_attention
    if attention is None:
        return
    memory = context.signals["memory"]
    dot = attention.score.entry.dot
    yield (
        "0.cross_attention",
        AttentionSite(
            heads=1,
            kv_heads=1,
            head_dim=options.d_state,
            value_dim=memory.width,
            cross=True,
            mask_terms=frozenset({"visible"} if attention.local else {"key_visible"} if memory.padded else ()),
            backend=attention.backend,
            bias="dense" if attention.local else None,
            bias_gradient=attention.local is not None,
            dropout=attention.dropout,
            score="dot" if dot else attention.score.kind,
        ),
    )


def _rules(options: RnnOptions, context: NodeContext) -> tuple[Rule, ...]:
    signal, memory = context.signals["input"], memory_signal(context)
    if signal.length is None:
        rule = f"`{options.input}` is one vector, {_axes(signal)}, and a recurrent node reads a sequence"
        return (("input", rule, "read a sequence"),)
    broken = [*_memory_rules(options, context), *_readout_rules(options, context)]
    if options.cross_attention is not None and memory is not None and memory.length is not None:
        broken += _attention_rules(options, options.cross_attention, context)
    return tuple(broken)


def _axes(signal: Signal) -> str:
    return f"({', '.join(map(str, signal.axes))})"


def _memory_rules(options: RnnOptions, context: NodeContext) -> Iterator[Rule]:
    memory, take = memory_signal(context), options.initial_state.take
    if memory is None:
        if options.cross_attention is not None:
            yield "cross_attention", "there is no memory to attend to", "write `memory: NODE`"
        if take != "zeros":
            yield "initial_state", f"`take: {take}` needs a memory", "write `memory: NODE`, or `take: zeros`"
        return
    if options.bidirectional:
        rule = "a decoder with a memory reads from left to right only"
        yield "bidirectional", rule, "remove it, or read the memory in another node"
    if memory.length is None and options.cross_attention is not None:
        rule = f"`{options.memory}` is one vector, {_axes(memory)}, and has nothing to attend to"
        yield "cross_attention", rule, "remove it: the vector enters every step; or let `memory` be a sequence"
    if memory.length is not None and options.cross_attention is None and take == "zeros":
        rule = f"nothing reads the memory `{options.memory}`"
        yield "memory", rule, "write `cross_attention`, or an `initial_state` from it, or pool it to one vector"
    encoder = context.targets.get("memory")
    if take == "first_backward" and options.initial_width is None and not _backward(encoder):
        rule = f"`{options.memory}` has no backward cell"
        yield "initial_state", rule, "take `last` or `mean`, or write `initial_width`: its last features are the state"
    if options.initial_width is not None:
        if take != "first_backward":
            yield "initial_width", f"`take: {take}` takes all features of the memory", "remove it"
        elif options.initial_width > memory.width:
            rule = f"initial_width {options.initial_width} is more than the {memory.width} features of `{options.memory}`"
            yield "initial_width", rule, f"use at most {memory.width}"
        elif isinstance(encoder, RnnOptions) and _backward(encoder) and options.initial_width != encoder.d_state:
            of_state = f"the backward state of `{options.memory}`, {encoder.d_state}"
            rule = f"initial_width {options.initial_width} differs from {of_state}"
            yield "initial_width", rule, "remove it"
    if take == "states":
        yield from _same_states(options, encoder)


def _backward(encoder: object) -> bool:
    return isinstance(encoder, RnnOptions) and encoder.bidirectional and encoder.readout is None


def _same_states(options: RnnOptions, encoder: object) -> Iterator[Rule]:
    layers, width, states = options.num_layers, options.d_state, cell_of(options).states
    fix = "make them equal, or take `last` or `mean`"
    if not isinstance(encoder, RnnOptions) or encoder.bidirectional:
        yield "initial_state", f"`{options.memory}` is no recurrent node with one direction", "take `last` or `mean`"
    elif (layers, width, states) != (encoder.num_layers, encoder.d_state, cell_of(encoder).states):
        theirs = f"{encoder.num_layers} x {cell_of(encoder).states} x {encoder.d_state}"
        ours = f"{layers} x {states} x {width}"
        rule = f"{ours} states (layers, tensors, features), but those of `{options.memory}` are {theirs}"
        yield "initial_state", rule, fix


def _attention_rules(options: RnnOptions, attention: RnnAttentionOptions, context: NodeContext) -> Iterator[Rule]:
    memory = context.signals["memory"]
    if attention.score.kind == "dot" and memory.width != options.d_state:
        rule = f"a dot product of d_state {options.d_state} and the {memory.width} features of `{options.memory}`"
        yield "cross_attention.score", rule, "use `general`, `additive` or `concat`, or a dense node on the memory"
    if attention.score.kind != "dot" and attention.scale != 1.0:
        rule = f"`scale` multiplies a dot product, and the score is `{attention.score.kind}`"
        yield "cross_attention.scale", rule, "remove it"
    if attention.input_feeding and attention.attend != "after_cell":
        rule = f"`{attention.attend}` feeds the context itself to the cell"
        yield "cross_attention.input_feeding", rule, "write `attend: after_cell`, or remove it"
    if attention.attend == "after_cell" and options.readout is None:
        yield "readout", "the context comes after the cell, so that a read-out must read it", "write `readout`"
    if len(attention.backend) > 1 and any(part.kind == "auto" for part in attention.backend):
        rule = "`auto` chooses among all backends, so it stands alone"
        yield "cross_attention.backend", rule, "write `backend: auto`, or a list without it"


def _readout_rules(options: RnnOptions, context: NodeContext) -> Iterator[Rule]:
    readout, attention = options.readout, options.cross_attention
    if readout is None:
        return
    parts = readout_parts(options, context)
    reads = readout_reads(options, context)
    if options.bidirectional:
        yield "readout", "a bidirectional encoder has no read-out", "put a dense node after it"
    if "context" in reads and "context" not in parts:
        yield "readout.reads", "there is no context: no attention, and no memory that is one vector", "remove `context`"
    if len(set(reads)) < len(reads):
        yield "readout.reads", f"{', '.join(reads)} has a name twice", "write each once"
    if readout.state == "previous" and "state" not in reads:
        yield "readout.state", "it does not read the state", "remove it, or add `state` to `reads`"
    if attention is not None and attention.attend == "after_cell" and "context" not in reads:
        yield "readout.reads", "nothing reads the context, which comes after the cell", "add `context`"


RNN = NodeKind(
    name="rnn",
    summary="a recurrent network: encoder, language model or decoder",
    reference="https://arxiv.org/abs/1409.0473",
    options=RnnOptions,
    inherits=frozenset({"dropout", "init"}),
    ports=("layers",),
    stepwise=lambda options: not options.bidirectional,
    mixes_positions=True,
    output=_output,
    parameters=_parameters,
    costs=_costs,
    sites=_sites,
    rules=_rules,
    build="tfkit.builtin.node.node_builders:rnn",
    source="tfkit.builtin.node:rnn.py.jinja",
)
