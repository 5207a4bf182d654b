"""The entries of the built-in sub-layer kinds, without torch: weights, costs, activation memory and rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...plugin import Component, Parameter, SublayerKind, linear
from ...slots.cost import FLOAT32_BYTES, Cost, Numbers, Sizes
from ...slots.position import PositionSite
from ...slots.score import ScoreSite
from ...slots.sublayer import AttentionSite, SublayerContext, SublayerOptions, changed_settings, settings_of
from .options import SHARED_MATRICES, AverageAttentionOptions, CrossAttentionOptions, FeedForwardOptions, SelfAttentionOptions


def attention_kept(options: SelfAttentionOptions, context: SublayerContext, sizes: Sizes, numbers: Numbers) -> int:
    """Inputs, queries, keys and values, the merged heads, and either the sum of each softmax or all its weights.

    inputs   c (N M + 2 K S) with autocast, else 4 N M, because the three projections share one tensor
    heads    c (N H D + K G (D + V)), plus 4 bytes each of queries and keys before their norm; a shared matrix has one product
    output   c N H V, twice where a row may see no key and is set to zero
    softmax  4 B H Q with a fused kernel, which computes the weights again (FlashAttention, section 3.1,
             https://arxiv.org/abs/2205.14135); else 4 B H Q K, and as much for each setting of scores or weights

    Autograd saves the operands of each product, and the input or the result of each elementwise function:
    https://docs.pytorch.org/docs/stable/notes/autograd.html#saved-tensors
    The terms are those of Korthikanti et al. 2022, section 4.1 (https://arxiv.org/abs/2205.05198), for weights and norms in
    float32, projections with an input each, and any dtype, gate and number of heads. N tokens, K keys, M features of the
    stack, S of the memory, c bytes of a number in a product.
    """
    B, Q, c = sizes.batch, sizes.queries, numbers.product
    N, K = B * Q, B * sizes.keys
    width, H, G = context.width, options.num_heads, options.kv_heads
    D, V = options.dim(width), options.values(width)
    weighted = options.name in numbers.weighted
    projected = products(options, context, N, K)
    inputs = c * sum(rows * inner for rows, inner, _ in projected) if numbers.autocast else c * N * width
    heads = (FLOAT32_BYTES if weighted else c) * sum(rows * outer for rows, _, outer in projected)
    if options.query_key_norm.kind != "none":
        heads += FLOAT32_BYTES * (N * H * (D + 1) + K * G * (D + 1))
    output = c * N * H * V * (2 if context.padded else 1)
    softmax = FLOAT32_BYTES * B * H * Q
    if weighted:
        copies = 1 + len(changed_settings(options))
        softmax = B * H * Q * sizes.keys * (FLOAT32_BYTES * copies + (options.dropout > 0.0))
    gate = c * N * (width + options.gates(width) + H * V) if options.output_gate != "none" else 0
    mixed = c * K * G * V if options.value_residual != "none" else 0
    score_costs: Cost = options.score.entry.costs(options.score.options, ScoreSite(H, D), G, sizes)
    return inputs + heads + output + softmax + gate + mixed + FLOAT32_BYTES * score_costs.elements


def ffn_kept(options: FeedForwardOptions, context: SublayerContext, sizes: Sizes, numbers: Numbers) -> int:
    """The input, M; the hidden features F that the activation, the gate and the output projection need; dropout's mask.

    plain   c N (M + F (1 + own)), gated   c N (M + F (3 + own)), where `own` counts what the activation itself keeps
    With autocast the gate casts a second copy of the input.
    """
    N, F, c = sizes.batch * sizes.queries, options.d_ff, numbers.product
    entry = options.activation.entry
    inputs = context.width * (2 if entry.gated and numbers.autocast else 1)
    hidden: int = F * ((3 if entry.gated else 1) + entry.kept)
    dropped = N * F * (c + 1) if options.dropout else 0
    return c * N * (inputs + hidden) + dropped


def acts_in_attention(position: Component) -> bool:
    """Whether a position scheme acts on queries and keys or on scores."""
    return bool(position.entry.acts & {"queries_keys", "scores"})


def scheme_of(options: SelfAttentionOptions, context: SublayerContext) -> Component:
    """The position scheme of a site: the layer's for self-attention, its own for cross-attention."""
    return options.position if isinstance(options, CrossAttentionOptions) else context.position


def position_site(options: SelfAttentionOptions, context: SublayerContext) -> PositionSite:
    cross = isinstance(options, CrossAttentionOptions)
    dim = options.dim(context.width)
    return PositionSite(context.width, options.num_heads, dim, causal=context.causal and not cross, cross=cross)


def score_of(options: SelfAttentionOptions) -> str:
    """The score function that the backend computes: `dot` also where the keys are mapped first."""
    return "dot" if options.score.entry.dot else options.score.kind


def scale_of(options: SelfAttentionOptions, head_dim: int) -> float:
    """The factor of a dot product of queries with keys; other scores have none."""
    if options.score.kind != "dot":
        return 1.0
    return options.scale if isinstance(options.scale, float) else head_dim**-0.5


def own_table(options: SelfAttentionOptions, context: SublayerContext) -> bool:
    """Whether the site has a position table of its own. The stack counts the tables that its layers share."""
    scheme = scheme_of(options, context)
    if not acts_in_attention(scheme):
        return False
    return scheme.entry.tables(scheme.options) == "layer" or isinstance(options, CrossAttentionOptions)


class Matrix(NamedTuple):
    """A projection (inner -> outer). `role` is that of its weight; a shared matrix has the role `value`, whose spread a
    placement may scale."""

    role: str
    inner: int
    outer: int
    bias: bool


def source_width(options: SelfAttentionOptions, context: SublayerContext) -> int:
    """Features of what keys and values are projected from."""
    return (context.memory_width or context.width) if isinstance(options, CrossAttentionOptions) else context.width


def matrices(options: SelfAttentionOptions, context: SublayerContext) -> dict[str, Matrix]:
    """The projections of an attention by name, in the order of its parameters."""
    width, source, bias = context.width, source_width(options, context), options.bias
    dim, values = options.dim(width), options.values(width)
    separate = {
        "query": Matrix("query", width, options.num_heads * dim, bias.query),
        "key": Matrix("key", source, options.kv_heads * dim, bias.key),
        "value": Matrix("value", source, options.kv_heads * values, bias.value),
    }
    projections = {name: matrix for name, matrix in separate.items() if options.matrix(name) == name}
    shared = options.matrix("value")
    projections[shared] = projections[shared]._replace(role="value")
    if options.output_projection:
        projections["output"] = Matrix("attention_output", options.num_heads * values, width, bias.output)
    if options.output_gate != "none":  # a bias where the query has one, because Qwen projects both by one matrix
        projections["gate"] = Matrix("attention_gate", width, options.gates(width), bias.query)
    return projections


def products(options: SelfAttentionOptions, context: SublayerContext, Q: int, K: int) -> list[tuple[int, int, int]]:
    """The products that give queries, keys and values of Q tokens that read K, each as (rows, inner, outer)."""
    projections = matrices(options, context)
    applied = [(Q, projections["query"])]
    if "key" in projections or isinstance(options, CrossAttentionOptions):  # else the keys are the queries
        applied.append((K, projections[options.matrix("key")]))
    if "value" in projections:
        applied.append((K, projections["value"]))
    return [(rows, matrix.inner, matrix.outer) for rows, matrix in applied]


def attention_parameters(options: SelfAttentionOptions, context: SublayerContext) -> tuple[Parameter, ...]:
    width, dim = context.width, options.dim(context.width)
    parameters = [
        parameter
        for name, (role, inner, outer, bias) in matrices(options, context).items()
        for parameter in linear(name, role, inner, outer, bias)
    ]
    if options.value_residual == "learned":
        parameters.append(Parameter("value_residual.weight", "value_residual", (2,)))
    if options.sink:
        parameters.append(Parameter("sink", "attention_sink", (options.num_heads,)))
    norm = options.query_key_norm
    for side, over in zip(("query_norm", "key_norm"), options.norm_widths(width), strict=True):
        parameters += [parameter.under(side) for parameter in norm.entry.parameters(norm.options, over)]
    if own_table(options, context):
        scheme = scheme_of(options, context)
        site = position_site(options, context)
        parameters += [parameter.under("position") for parameter in scheme.entry.parameters(scheme.options, site)]
    score = options.score
    weights = score.entry.parameters(score.options, ScoreSite(options.num_heads, dim))
    parameters += [parameter.under("score") for parameter in weights]
    return tuple(parameters)


def attention_costs(options: SelfAttentionOptions, context: SublayerContext, sizes: Sizes) -> tuple[Cost, ...]:
    """Projections cost O(L M H D). Attention costs O(Q K H D): one half for the scores, one half for the values. A sink is one
    more key.

    The backward pass of the plain equation needs the input of each projection, the three projected tensors, the weights and
    the merged heads.
    """
    B, Q, K = sizes.batch, sizes.queries, sizes.keys
    width, dim, heads, kv_heads = context.width, options.dim(context.width), options.num_heads, options.kv_heads
    both = dim + options.values(width)  # of queries or keys, and of values
    projected = products(options, context, Q, K)
    projections = 2 * B * sum(rows * inner * outer for rows, inner, outer in projected)
    kept = B * (Q * width + sum(rows * outer for rows, _, outer in projected))
    if options.output_projection:
        projections += 2 * B * Q * heads * options.values(width) * width
        kept += B * Q * heads * options.values(width)
    if options.output_gate != "none":
        projections += 2 * B * Q * width * options.gates(width)
        kept += B * Q * (options.gates(width) + heads * options.values(width))
    if options.value_residual == "learned":
        kept += B * K * kv_heads * options.values(width)
    scheme = scheme_of(options, context)
    position = 0
    if acts_in_attention(scheme):
        position = scheme.entry.flops(scheme.options, position_site(options, context), B, Q, K)
    scores = options.score.entry.costs(options.score.options, ScoreSite(heads, dim), kv_heads, sizes)
    sink = B * heads * Q * options.sink
    costs = [
        Cost("projections", projections, kept),
        Cost(
            "attention",
            scores.flops + 2 * B * heads * Q * K * options.values(width) + 2 * sink * both,
            scores.elements + B * heads * Q * K + sink,
        ),
    ]
    return (*costs, Cost("position", position, 0)) if position else tuple(costs)


def attention_site(options: SelfAttentionOptions, context: SublayerContext) -> AttentionSite:
    cross = isinstance(options, CrossAttentionOptions)
    terms = {"key_visible"} if context.padded else set()
    if context.causal and not cross:
        terms.add("causal")
    if options.window is not None:
        terms.add("window")
    scheme = scheme_of(options, context)
    kinds = sorted(scheme.entry.bias_kinds) if "scores" in scheme.entry.acts else []
    learns = bool(kinds) and bool(scheme.entry.parameters(scheme.options, position_site(options, context)))
    if options.sink:  # one more key, with a bias: see nn/attention_sink.py
        terms, kinds, learns = {"visible"} if terms else set(), ["dense"], True
    return AttentionSite(
        heads=options.num_heads,
        kv_heads=options.kv_heads,
        head_dim=options.dim(context.width),
        cross=cross,
        mask_terms=frozenset(terms),
        backend=options.backend,
        bias=kinds[0] if kinds else None,
        bias_gradient=learns,
        score=score_of(options),
        value_dim=options.value_dim,
        **settings_of(options),
    )


def attention_rules(options: SelfAttentionOptions, context: SublayerContext) -> tuple[tuple[str, str, str], ...]:
    """The broken rules of heads, window, backends and position, each as (option, rule with its numbers, fix)."""
    broken: list[tuple[str, str, str]] = []
    width, heads, kv_heads = context.width, options.num_heads, options.kv_heads
    if options.head_dim is None and width % heads:
        lower, upper = width // heads * heads, (width // heads + 1) * heads
        close = f"{upper}" if not lower else f"{lower} or {upper}"
        fix = f"use d_model {close}, another num_heads, or write head_dim"
        broken.append(("num_heads", f"d_model {width} is not divisible by num_heads {heads}", fix))
        return tuple(broken)
    if heads % kv_heads:
        divisors = ", ".join(str(number) for number in range(1, min(heads, 64) + 1) if heads % number == 0)
        rule = f"num_heads {heads} is not divisible by num_kv_heads {kv_heads}"
        broken.append(("num_kv_heads", rule, f"use a divisor of {heads}: {divisors}"))
    if len(options.backend) > 1 and any(part.kind == "auto" for part in options.backend):
        rule = "`auto` chooses among all backends, so no other may be listed with it"
        broken.append(("backend", rule, "write `backend: auto`, or a list without it"))
    if options.score.kind != "dot" and isinstance(options.scale, float):
        rule = f"`scale` multiplies a dot product, and the score is `{options.score.kind}`"
        broken.append(("scale", rule, "remove it"))
    if options.sink and not options.score.entry.dot:
        rule = f"a sink joins the softmax of dot products, and the score is `{options.score.kind}`"
        broken.append(("sink", rule, "remove it, or use the score `dot` or `general`"))
    broken += matrix_rules(options, context)
    if options.query_key_norm_over != "each_head" and options.query_key_norm.kind == "none":
        broken.append(("query_key_norm_over", "there is no norm of queries and keys", "write `query_key_norm`, or remove it"))
    if options.query_key_norm.entry.over_batch:
        rule = f"{options.query_key_norm.kind} is over the tokens of a batch, a norm of queries and keys over each head"
        broken.append(("query_key_norm", rule, "choose another norm"))
    cross = isinstance(options, CrossAttentionOptions)
    if isinstance(options.window, int) and (cross or not context.causal):
        rule = "a window given as one number counts backwards and needs a causal stack"
        broken.append(("window", rule, f"write [left, right], for instance [{options.window - 1}, {options.window - 1}]"))
    if cross and options.window is not None and not isinstance(options.window, int):
        broken.append(("window", "positions of two different sequences have no window", "remove it"))
    scheme = scheme_of(options, context)
    if acts_in_attention(scheme):
        for reason in scheme.entry.unsupported(scheme.options, position_site(options, context)):
            broken.append(("position", f"{scheme.kind}: {reason}", "choose another head_dim, other options, or another scheme"))
    elif cross and scheme.entry.acts:
        broken.append(("position", f"{scheme.kind} acts on embeddings", "write it at the tokens node"))
    return tuple(broken)


def matrix_rules(options: SelfAttentionOptions, context: SublayerContext) -> Iterator[tuple[str, str, str]]:
    """The broken rules of shared and absent projections."""
    width, source, heads = context.width, source_width(options, context), options.num_heads
    dim, values = options.dim(width), options.values(width)
    shared = SHARED_MATRICES[options.shared_projection]
    tensors = sorted({*shared, *shared.values()})
    if shared and values != dim:
        rule = f"keys and values of one matrix have equal features, and value_dim is {values}, head_dim {dim}"
        yield "value_dim", rule, "remove it"
    if "key" in shared and options.kv_heads != heads:
        rule = f"queries and keys of one matrix have equal heads, and num_kv_heads is {options.kv_heads}, num_heads {heads}"
        yield "num_kv_heads", rule, "remove it, or share `key_value`"
    if "key" in shared and source != width:
        rule = f"one matrix cannot read {width} features of queries and {source} of the memory"
        yield "shared_projection", rule, "use `key_value`"
    if len({getattr(options.bias, tensor) for tensor in tensors}) > 1:
        yield "bias", f"{' and '.join(tensors)} have one matrix and one bias", "write the same for all of them"
    if not options.output_projection and heads * values != width:
        rule = f"{heads} heads of {values} features leave the attention as they are, and d_model is {width}"
        yield "output_projection", rule, "write `value_dim` or another `num_heads`, or keep the projection"
    if not options.output_projection and isinstance(biases := options.bias.written(), dict) and "output" in biases:
        yield "bias", "there is no output projection", "remove `output`"


def attention_undivided(options: SelfAttentionOptions, context: SublayerContext, ranks: int) -> str:
    """Why the heads cannot be divided among ranks. A rank has its part of the projections; weights that all heads share are
    whole, and their gradients are summed over the ranks."""
    scheme = scheme_of(options, context)
    for name, heads in (("num_heads", options.num_heads), ("num_kv_heads", options.kv_heads)):
        if heads % ranks:
            return f"{name} {heads} is not divisible by {ranks}"
    if options.query_key_norm_over == "all_heads":
        return "the norm of queries and keys is over all heads"
    if options.sink:
        return "each head has a sink"
    score, dim = options.score, options.dim(context.width)
    of_all, of_one = (score.entry.parameters(score.options, ScoreSite(heads, dim)) for heads in (options.num_heads, 1))
    if of_all != of_one:
        return f"the score {score.kind} has weights of each head"
    if acts_in_attention(scheme):
        tables = scheme.entry.parameters(scheme.options, position_site(options, context))
        if tables or "scores" in scheme.entry.acts:
            return f"{scheme.kind} has a bias or a table for all heads"
    return ""


def ffn_undivided(options: FeedForwardOptions, context: SublayerContext, ranks: int) -> str:
    return f"d_ff {options.d_ff} is not divisible by {ranks}" if options.d_ff % ranks else ""


def ffn_parameters(options: FeedForwardOptions, context: SublayerContext) -> tuple[Parameter, ...]:
    width, inner, bias = context.width, options.d_ff, options.bias
    gate = linear("gate", "ffn_gate", width, inner, bias) if options.activation.entry.gated else ()
    return (*linear("input", "ffn_in", width, inner, bias), *gate, *linear("output", "ffn_out", inner, width, bias))


def ffn_costs(options: FeedForwardOptions, context: SublayerContext, sizes: Sizes) -> tuple[Cost, ...]:
    tokens = sizes.batch * sizes.queries
    maps = 3 if options.activation.entry.gated else 2
    flops = 2 * tokens * context.width * options.d_ff * maps
    kept = tokens * (context.width + options.d_ff * (2 if maps == 2 else 4))
    return (Cost("ffn", flops, kept),)


def ssru_parameters(options: SublayerOptions, context: SublayerContext) -> tuple[Parameter, ...]:
    width = context.width
    return (*linear("input", "ssru_input", width, width, False), *linear("forget", "ssru_forget", width, width))


def ssru_costs(options: SublayerOptions, context: SublayerContext, sizes: Sizes) -> tuple[Cost, ...]:
    """Two maps, O(L M M); log2(L) rounds of the scan keep their operands."""
    tokens, width, rounds = sizes.batch * sizes.queries, context.width, (sizes.queries - 1).bit_length()
    return (Cost("ssru", 4 * tokens * width * width, tokens * width * (4 + 2 * rounds)),)


def average_parameters(options: AverageAttentionOptions, context: SublayerContext) -> tuple[Parameter, ...]:
    gate = linear("gate", "average_gate", 2 * context.width, 2 * context.width) if options.gate else ()
    return (*(parameter.under("ffn") for parameter in ffn_parameters(options, context)), *gate)


def average_costs(options: AverageAttentionOptions, context: SublayerContext, sizes: Sizes) -> tuple[Cost, ...]:
    """The feed-forward layer, O(L M F), and the gates, O(L M M)."""
    tokens, width = sizes.batch * sizes.queries, context.width
    gates = Cost("average", 8 * tokens * width * width, 5 * tokens * width) if options.gate else Cost("average", 0, 0)
    mean = Cost("average", gates.flops, gates.elements + tokens * width)
    return (*ffn_costs(options, context, sizes), mean)


def causal_only(options: SublayerOptions, context: SublayerContext) -> tuple[tuple[str, str, str], ...]:
    """A token reads itself and the tokens before it."""
    if context.causal:
        return ()
    return (("kind", "a token reads only what comes before it, and the stack is not causal", "write `self_attention`"),)


ENTRIES = [
    SublayerKind(
        name="self_attention",
        summary="multi-head attention of a sequence to itself",
        reference="https://arxiv.org/abs/1706.03762",
        options=SelfAttentionOptions,
        option_keys=("attention", "self_attention"),
        reads="self",
        parameters=attention_parameters,
        costs=attention_costs,
        kept=attention_kept,
        undivided=attention_undivided,
        site=attention_site,
        unsupported=attention_rules,
        build="tfkit.builtin.sublayer.sublayer_builders:attention",
        source="tfkit.builtin.sublayer:attention.py.jinja",
    ),
    SublayerKind(
        name="cross_attention",
        summary="multi-head attention of a sequence to a memory",
        reference="https://arxiv.org/abs/1706.03762",
        options=CrossAttentionOptions,
        option_keys=("attention", "cross_attention"),
        reads="memory",
        parameters=attention_parameters,
        costs=attention_costs,
        kept=attention_kept,
        undivided=attention_undivided,
        site=attention_site,
        unsupported=attention_rules,
        build="tfkit.builtin.sublayer.sublayer_builders:attention",
        source="tfkit.builtin.sublayer:attention.py.jinja",
    ),
    SublayerKind(
        name="ffn",
        summary="position-wise feed-forward layer, plain or gated",
        reference="https://arxiv.org/abs/1706.03762",
        options=FeedForwardOptions,
        option_keys=("ffn",),
        reads="none",
        parameters=ffn_parameters,
        costs=ffn_costs,
        kept=ffn_kept,
        undivided=ffn_undivided,
        build="tfkit.builtin.sublayer.sublayer_builders:feed_forward",
        source="tfkit.builtin.sublayer:ffn.py.jinja",
    ),
    SublayerKind(
        name="ssru",
        summary="a recurrence with one gate (SSRU) in place of a decoder's self-attention",
        reference="https://aclanthology.org/D19-5632",
        options=SublayerOptions,
        option_keys=("ssru",),
        reads="self",
        parameters=ssru_parameters,
        costs=ssru_costs,
        unsupported=causal_only,
        build="tfkit.builtin.sublayer.sublayer_builders:ssru",
        source="tfkit.builtin.sublayer:ssru.py.jinja",
    ),
    SublayerKind(
        name="average_attention",
        summary="the mean of the tokens so far, with gates, in place of a decoder's self-attention",
        reference="https://aclanthology.org/P18-1166",
        options=AverageAttentionOptions,
        option_keys=("average_attention",),
        reads="self",
        parameters=average_parameters,
        costs=average_costs,
        unsupported=causal_only,
        build="tfkit.builtin.sublayer.sublayer_builders:average_attention",
        source="tfkit.builtin.sublayer:average_attention.py.jinja",
    ),
]
