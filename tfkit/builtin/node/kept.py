"""What the built-in nodes keep for the backward pass: stacks, tokens and logits; see `tfkit/builtin/sublayer/kept.py`."""

from __future__ import annotations

from collections.abc import Mapping

from ...slots.cost import Sizes
from ...slots.kept import WIDE, Kept, Numbers, kept_by_costs, kept_of_norm
from ...slots.layer import Layer, applications
from ...slots.node import NodeContext
from .options import StackOptions, TokenLogitsOptions, TokensOptions
from .stack_entry import memory_of, sublayer_context


def stack_kept(options: StackOptions, context: NodeContext, sizes: Mapping[str, Sizes], numbers: Numbers) -> Kept:
    """The sum over the layers. With checkpointing only the float32 input of each layer is kept, 4 N M bytes (Chen et al. 2016,
    https://arxiv.org/abs/1604.06174), and one layer at a time is computed again."""
    own = sizes[""]
    tokens, width = own.batch * own.queries, context.signals["input"].width
    every = inputs = largest = 0
    for times, layer in applications(options.layers):
        layer_bytes = _layer(options, context, layer, sizes, numbers)
        every += times * layer_bytes
        inputs += times * tokens * width * WIDE
        largest = max(largest, layer_bytes)
    final = kept_of_norm(tokens, width) if options.final_norm.kind != "none" else 0
    read = sum(size.batch * size.keys * context.memories[ref].width for ref, size in sizes.items() if ref) * WIDE
    memory = 0 if numbers.autocast else read  # its projections share it
    checkpointed = inputs + final + read
    return Kept(checkpointed + largest if options.checkpoint else every + final + memory, checkpointed, largest)


def _layer(options: StackOptions, context: NodeContext, layer: Layer, sizes: Mapping[str, Sizes], numbers: Numbers) -> int:
    own, placement = sizes[""], layer.placement
    tokens, width = own.batch * own.queries, context.signals["input"].width
    assert placement is not None
    total = 0
    for sublayer in layer.sublayers or ():
        memory = memory_of(options, sublayer)
        lengths = sizes[memory] if memory else own
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
    norm = kept_of_norm(tokens, options.d_model) if options.embedding_norm.kind != "none" else 0
    total = tokens * 8 + norm + (tokens * options.d_model if options.dropout else 0)
    return Kept(total, total)


def logits_kept(
    options: TokenLogitsOptions, context: NodeContext, sizes: Mapping[str, Sizes], numbers: Numbers, vocabulary: int
) -> Kept:
    """The input, c N M, and the logits, c N V, which the loss needs; twice with a softcap. Autocast copies a shared table."""
    tokens, width = sizes[""].batch * sizes[""].queries, context.signals["input"].width
    total = numbers.product * tokens * (width + vocabulary * (2 if options.softcap is not None else 1))
    return Kept(total, total, casts=vocabulary * width if options.share else 0)
