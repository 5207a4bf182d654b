"""The entries of the built-in node kinds, without torch: outputs, weights, costs, activation memory and rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from ...plugin import NodeKind, OneOf, Options, Parameter, component_default, linear
from ...slots.cost import FLOAT32_BYTES, Cost, Kept, Numbers, Sizes, kept_by_costs, kept_of_norm
from ...slots.layer import Layer, applications
from ...slots.node import InputRule, NodeContext, Rule, Signal
from ...slots.options import NodeRef
from ...slots.parameter import ParameterGroup
from ...slots.position import PositionSite
from .image_audio_entries import CONVOLUTIONS, FEATURES, PATCHES, SIMILARITY
from .options import (
    ClassifyOptions,
    DenseOptions,
    Init,
    Input,
    LayerMixOptions,
    PoolOptions,
    ProbabilitiesOptions,
    StackOptions,
    TokenLogitsOptions,
    TokensOptions,
)
from .rnn_entry import RNN, RnnOptions
from .stack_entry import STACK, memory_of, sublayer_context


def stack_kept(options: StackOptions, context: NodeContext, sizes: Mapping[str, Sizes], numbers: Numbers) -> Kept:
    """The sum over the layers. With checkpointing only the float32 input of each layer is kept, 4 N M bytes (Chen et al. 2016,
    https://arxiv.org/abs/1604.06174), and one layer at a time is computed again."""
    input_sizes = sizes[""]
    tokens, width = input_sizes.batch * input_sizes.queries, context.signals["input"].width
    every = inputs = largest = 0
    for times, layer in applications(options.layers):
        layer_bytes = _layer(options, context, layer, sizes, numbers)
        every += times * layer_bytes
        inputs += times * tokens * width * FLOAT32_BYTES
        largest = max(largest, layer_bytes)
    final = kept_of_norm(tokens, width) if options.final_norm.kind != "none" else 0
    read = sum(size.batch * size.keys * context.memories[ref].width for ref, size in sizes.items() if ref) * FLOAT32_BYTES
    memory = 0 if numbers.autocast else read  # its projections share it
    checkpointed = inputs + final + read
    return Kept(checkpointed + largest if options.checkpoint else every + final + memory, checkpointed, largest)


def _layer(options: StackOptions, context: NodeContext, layer: Layer, sizes: Mapping[str, Sizes], numbers: Numbers) -> int:
    input_sizes, placement = sizes[""], layer.placement
    tokens, width = input_sizes.batch * input_sizes.queries, context.signals["input"].width
    assert placement is not None
    total = 0
    for sublayer in layer.sublayers or ():
        memory = memory_of(options, sublayer)
        lengths = sizes[memory] if memory else input_sizes
        inner, entry = sublayer_context(options, context, layer, sublayer), sublayer.entry
        if entry.kept is not None:
            total += entry.kept(sublayer.options, inner, lengths, numbers)
        else:
            total += kept_by_costs(entry.costs(sublayer.options, inner, lengths))
        total += tokens * width if layer.dropout else 0  # dropout's mask, a byte for each feature
    if layer.norm.kind != "none":
        names = tuple(sublayer.options.name for sublayer in layer.sublayers or ())
        total += len(placement.entry.norm_sites(placement.options, names)) * kept_of_norm(tokens, width)
    return total


def tokens_kept(options: TokensOptions, context: NodeContext, sizes: Mapping[str, Sizes], numbers: Numbers) -> Kept:
    """The ids, int64; the input of a norm and the mask of dropout, if there are any."""
    tokens = sizes[""].batch * sizes[""].queries
    norm = kept_of_norm(tokens, tokens_width(options)) if options.embedding_norm.kind != "none" else 0
    total = tokens * 8 + norm + (tokens * tokens_width(options) if options.dropout else 0)
    return Kept(total, total)


def logits_kept(
    options: TokenLogitsOptions, context: NodeContext, sizes: Mapping[str, Sizes], numbers: Numbers, vocabulary: int
) -> Kept:
    """The input, c N M, and the logits, c N V, which the loss needs; twice with a softcap. Autocast copies a shared table."""
    tokens, width = sizes[""].batch * sizes[""].queries, context.signals["input"].width
    total = numbers.product * tokens * (width + vocabulary * (2 if options.softcap is not None else 1))
    return Kept(total, total, casts=vocabulary * width if options.share else 0)


class SpanLogitsOptions(Options):
    """Start and end logits of every position; padding cannot be chosen."""

    input: Input
    choose: Annotated[
        str, OneOf("all", "second_text"), Field(description="where a span may be; `second_text`: there, or at the first token")
    ] = "all"
    tokens: Annotated[
        str | None, NodeRef("tokens"), Field(description="the tokens node whose first end token ends the first text")
    ] = None
    bias: bool = True
    init: Init = component_default("xavier")


def _parameters(options: SpanLogitsOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    return (ParameterGroup(linear("linear", "classify", context.signals["input"].width, 2, options.bias)),)


def _costs(options: SpanLogitsOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    width, positions = context.signals["input"].width, sizes[""].batch * sizes[""].queries
    return (Cost("span_logits", 4 * positions * width, positions * (width + 2)),)


def _rules(options: SpanLogitsOptions, context: NodeContext) -> tuple[Rule, ...]:
    signal, tokens = context.signals["input"], context.targets.get("tokens")
    if signal.length is None:
        return (("input", f"`{options.input}` is one vector, {signal.axes}", "read a sequence"),)
    if options.choose == "all":
        return (("tokens", "`choose: all` reads no token ids", "remove `tokens`"),) if options.tokens else ()
    if not isinstance(tokens, TokensOptions):
        return (("tokens", "`choose: second_text` needs the tokens node with both texts", "write `tokens: NODE`"),)
    if tokens.end_id is None:
        return (("tokens", f"`{options.tokens}` has no end_id", "write `end_id` there"),)
    return ()


def _alone(options: object, context: NodeContext) -> bool:
    """A node that computes each position alone."""
    return True


SPAN_LOGITS = NodeKind(
    name="span_logits",
    summary="scores over positions, of the start and of the end of a span",
    reference="https://aclanthology.org/N19-1423/",
    options=SpanLogitsOptions,
    inherits=frozenset({"init"}),
    stepwise=lambda options: False,
    output=lambda options, context: context.signals["input"].wide(2),
    parameters=_parameters,
    costs=_costs,
    rules=_rules,
    build="tfkit.builtin.node.node_builders:span_logits",
    source="tfkit.builtin.node:span_logits.py.jinja",
)


def _group(*parameters: Parameter) -> tuple[ParameterGroup, ...]:
    return (ParameterGroup(parameters),)


def tokens_width(options: TokensOptions) -> int:
    """The width of the output: d_model, and the features of a position that are appended."""
    return options.d_model + options.position.entry.widens(options.position.options, PositionSite(options.d_model))  # type: ignore[no-any-return]


def _tokens_output(options: TokensOptions, context: NodeContext) -> Signal:
    length = f"L_{context.name}"
    return Signal(("B", length, tokens_width(options)), length, tokens=context.name, padded=options.pad_id is not None)


def _tokens_input(options: TokensOptions, context: NodeContext) -> InputRule:
    owner = context.targets.get("share")
    size = (owner.vocab_size if isinstance(owner, TokensOptions) else options.vocab_size) or 0
    counts = options.position.entry.counts_padding(options.position.options)
    return InputRule(size, options.pad_id, options.start_id, options.end_id, options.segments or 0, counts)


def _tokens_parameters(options: TokensOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    width = options.d_model
    parameters: list[Parameter] = []
    if options.share is None:
        parameters.append(Parameter("embedding.weight", "embedding", (options.vocab_size or 0, width)))
    if options.segments:
        parameters.append(Parameter("segments.weight", "segment_table", (options.segments, width)))
    position, norm = options.position, options.embedding_norm
    parameters += [p.under("position") for p in position.entry.parameters(position.options, PositionSite(width))]
    parameters += [p.under("embedding_norm") for p in norm.entry.parameters(norm.options, tokens_width(options))]
    return _group(*parameters)


def _tokens_costs(options: TokensOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    input_sizes = sizes[""]
    position = options.position
    flops = position.entry.flops(
        position.options, PositionSite(options.d_model), input_sizes.batch, input_sizes.queries, input_sizes.queries
    )
    return (Cost("embedding", flops, input_sizes.batch * input_sizes.queries * tokens_width(options)),)


def _tokens_rules(options: TokensOptions, context: NodeContext) -> tuple[Rule, ...]:
    broken: list[Rule] = []
    owner = context.targets.get("share")
    if owner is not None and not isinstance(owner, TokensOptions):
        return (("share", f"`{options.share}` is no tokens node and has no table", "name a tokens node"),)
    vocab_size = owner.vocab_size if owner is not None else options.vocab_size
    if owner is None and options.share is None and vocab_size is None:
        broken.append(
            ("vocab_size", "`vocab_size` is missing", "write it here or in `defaults`, or `share` another node's table")
        )
    if owner is not None and owner.d_model != options.d_model:
        rule = f"d_model {options.d_model} differs from that of `{options.share}`, {owner.d_model}, whose table is shared"
        broken.append(("d_model", rule, "make them equal, or do not share"))
    for field in ("pad_id", "start_id", "end_id"):
        token = getattr(options, field)
        if token is not None and vocab_size is not None and token >= vocab_size:
            broken.append((field, f"{field} {token} is outside the vocabulary", f"ids are 0..{vocab_size - 1}"))
    position = options.position
    if position.entry.acts and "embeddings" not in position.entry.acts:
        rule = f"{position.kind} acts inside attention, not on embeddings"
        broken.append(("position", rule, "write it at the stack, or in `defaults`"))
    else:
        for reason in position.entry.unsupported(position.options, PositionSite(options.d_model)):
            broken.append(("position", f"{position.kind}: {reason}", "add the option, or choose another scheme"))
    return tuple(broken)


def _dense_width(options: DenseOptions, context: NodeContext) -> int:
    return options.d_model or context.signals["input"].width


def _dense_parameters(options: DenseOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    width, norm = _dense_width(options, context), options.output_norm
    weights = linear("linear", "dense", context.signals["input"].width, width, options.bias)
    return _group(*weights, *(p.under("output_norm") for p in norm.entry.parameters(norm.options, width)))


def _linear_cost(term: str, inner: int, outer: int, signal: Signal, sizes: Sizes) -> tuple[Cost, ...]:
    tokens = sizes.batch * (sizes.queries if signal.length else 1)
    return (Cost(term, 2 * tokens * inner * outer, tokens * (inner + outer)),)


def _dense_costs(options: DenseOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    signal = context.signals["input"]
    return _linear_cost("dense", signal.width, _dense_width(options, context), signal, sizes[""])


def _dense_rules(options: DenseOptions, context: NodeContext) -> tuple[Rule, ...]:
    if options.activation.entry.gated:
        rule = f"{options.activation.kind} is gated and needs a second projection, which a dense node does not have"
        return (("activation", rule, "choose one that is not gated"),)
    return ()


def vocab_size(options: TokenLogitsOptions, context: NodeContext) -> int:
    """The vocabulary size of the logits: that of the tokens node which owns the table, if the table is shared."""
    owner = context.targets.get("share")
    return (owner.vocab_size if isinstance(owner, TokensOptions) else options.vocab_size) or 0


def _logits_parameters(options: TokenLogitsOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    size = vocab_size(options, context)
    weights = () if options.share else linear("logits", "logits", context.signals["input"].width, size, bias=False)
    bias = (Parameter("bias", "bias", (size,), trainable=options.bias is True),) if options.bias else ()
    return _group(*weights, *bias)


def _logits_rules(options: TokenLogitsOptions, context: NodeContext) -> tuple[Rule, ...]:
    owner, width = context.targets.get("share"), context.signals["input"].width
    if options.share is None:
        if options.vocab_size is None:
            return (("vocab_size", "`vocab_size` is missing", "write it, or `share` the table of a tokens node"),)
        return ()
    if not isinstance(owner, TokensOptions):
        return (("share", f"`{options.share}` is no tokens node and has no table", "name a tokens node"),)
    if owner.d_model != width:
        rule = f"its input is {width} wide, but the table of `{options.share}` has d_model {owner.d_model}"
        return (("share", rule, "put a dense node in between, or do not share"),)
    return ()


def _logits_costs(options: TokenLogitsOptions, context: NodeContext, sizes: Mapping[str, Sizes]) -> tuple[Cost, ...]:
    signal = context.signals["input"]
    return _linear_cost("logits", signal.width, vocab_size(options, context), signal, sizes[""])


def _pooled(signal: Signal) -> Signal:
    return Signal(("B", signal.width))


def _pool_rules(options: PoolOptions, context: NodeContext) -> tuple[Rule, ...]:
    if context.signals["input"].length is None:
        return (("input", f"`{options.input}` is one vector already, {context.signals['input'].axes}", "read a sequence"),)
    tokens = context.targets.get("tokens")
    if options.take != "end_token":
        return (("tokens", f"`take: {options.take}` reads no token ids", "remove `tokens`"),) if options.tokens else ()
    if not isinstance(tokens, TokensOptions):
        return (("tokens", "`take: end_token` needs the tokens node whose end token is meant", "write `tokens: NODE`"),)
    if tokens.end_id is None:
        return (("tokens", f"`{options.tokens}` has no end_id", "write `end_id` there"),)
    return ()


def _pool_parameters(options: PoolOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    norm = options.output_norm
    return _group(*(p.under("output_norm") for p in norm.entry.parameters(norm.options, context.signals["input"].width)))


def _mix_parameters(options: LayerMixOptions, context: NodeContext) -> tuple[ParameterGroup, ...]:
    layers = context.signals["input"].depth + options.embeddings
    return _group(Parameter("weight", "mix_weight", (layers,)), Parameter("scale", "mix_scale", (1,)))


def _mix_rules(options: LayerMixOptions, context: NodeContext) -> tuple[Rule, ...]:
    if not context.signals["input"].depth:
        return (("input", f"`{options.input}` is one output, not the layers of a stack", "read its port: `NODE.layers`"),)
    if options.embeddings and isinstance(context.targets["input"], RnnOptions):
        rule = f"`{options.input}` holds the outputs of recurrent layers alone, without the input of the first one"
        return (("embeddings", rule, "write `embeddings: false`"),)
    return ()


def _probability_rules(options: ProbabilitiesOptions, context: NodeContext) -> tuple[Rule, ...]:
    if isinstance(context.targets["input"], TokenLogitsOptions | ClassifyOptions):
        return ()
    return (("input", f"`{options.input}` gives no logits", "read a token_logits or a classify node"),)


ENTRIES = [
    NodeKind(
        name="tokens",
        summary="token ids to vectors; an input of the model",
        options=TokensOptions,
        inherits=frozenset({"d_model", "vocab_size", "pad_id", "position", "dropout", "init"}),
        input_rule=_tokens_input,
        output=_tokens_output,
        parameters=_tokens_parameters,
        costs=_tokens_costs,
        kept=tokens_kept,
        rules=_tokens_rules,
        attends_only=_alone,
        build="tfkit.builtin.node.node_builders:tokens",
        source="tfkit.builtin.node:tokens.py.jinja",
    ),
    replace(STACK, kept=stack_kept),
    RNN,
    NodeKind(
        name="dense",
        summary="a linear map, an activation, a norm",
        options=DenseOptions,
        inherits=frozenset({"dropout", "init"}),
        output=lambda options, context: context.signals["input"].wide(_dense_width(options, context)),
        parameters=_dense_parameters,
        costs=_dense_costs,
        rules=_dense_rules,
        attends_only=_alone,
        build="tfkit.builtin.node.node_builders:dense",
        source="tfkit.builtin.node:dense.py.jinja",
    ),
    NodeKind(
        name="token_logits",
        summary="scores over a vocabulary",
        options=TokenLogitsOptions,
        inherits=frozenset({"vocab_size", "init"}),
        output=lambda options, context: context.signals["input"].wide(vocab_size(options, context)),
        parameters=_logits_parameters,
        costs=_logits_costs,
        kept=lambda options, context, sizes, numbers: logits_kept(
            options, context, sizes, numbers, vocab_size(options, context)
        ),
        rules=_logits_rules,
        attends_only=_alone,
        build="tfkit.builtin.node.node_builders:token_logits",
        source="tfkit.builtin.node:token_logits.py.jinja",
    ),
    NodeKind(
        name="pool",
        summary="one vector for a sequence",
        options=PoolOptions,
        inherits=frozenset(),
        stepwise=lambda options: False,
        output=lambda options, context: _pooled(context.signals["input"]),
        parameters=_pool_parameters,
        rules=_pool_rules,
        build="tfkit.builtin.node.node_builders:pool",
        source="tfkit.builtin.node:pool.py.jinja",
    ),
    NodeKind(
        name="classify",
        summary="scores over classes",
        options=ClassifyOptions,
        inherits=frozenset({"dropout", "init"}),
        output=lambda options, context: context.signals["input"].wide(options.classes),
        parameters=lambda options, context: _group(
            *linear("linear", "classify", context.signals["input"].width, options.classes, options.bias)
        ),
        costs=lambda options, context, sizes: _linear_cost(
            "classify", context.signals["input"].width, options.classes, context.signals["input"], sizes[""]
        ),
        attends_only=_alone,
        build="tfkit.builtin.node.node_builders:classify",
        source="tfkit.builtin.node:classify.py.jinja",
    ),
    NodeKind(
        name="probabilities",
        summary="softmax of logits; training and searches go on reading the logits",
        options=ProbabilitiesOptions,
        inherits=frozenset(),
        output=lambda options, context: context.signals["input"],
        parameters=lambda options, context: (),
        rules=_probability_rules,
        attends_only=_alone,
        build="tfkit.builtin.node.node_builders:probabilities",
        source="tfkit.builtin.node:probabilities.py.jinja",
    ),
    SPAN_LOGITS,
    NodeKind(
        name="layer_mix",
        summary="a learnt mix of the layers of a stack",
        reference="https://arxiv.org/abs/1802.05365",
        options=LayerMixOptions,
        inherits=frozenset(),
        takes_layers=True,
        output=lambda options, context: context.signals["input"].wide(context.signals["input"].width),
        parameters=_mix_parameters,
        rules=_mix_rules,
        attends_only=_alone,
        build="tfkit.builtin.node.node_builders:layer_mix",
        source="tfkit.builtin.node:layer_mix.py.jinja",
    ),
    PATCHES,
    FEATURES,
    CONVOLUTIONS,
    SIMILARITY,
]
