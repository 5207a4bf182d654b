"""Mutants of whole models: `verify` must fail on each of them.

A mutant is an error in a cache, a placement, a feed-forward layer, the wiring, dropout or a backend of one small model
(`kill_matrix.models.tampering`). The package itself is not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tfkit import Model
from tfkit.inspection import TokenLogits, Tokens
from tfkit.plugin import AttentionInputs

from . import (
    broken_decoding as decoding,
    broken_formulas as formulas,
    broken_layers as layers,
    broken_products as products,
    broken_wiring as wiring,
)
from .tampering import with_caches, with_step

Shape = Literal["encoder-decoder", "decoder", "classifier", "recurrent", "mixed"]


@dataclass(frozen=True)
class ModelMutant:
    """`apply(model)` puts the mutant into a model of the shape, in place, and gives it back."""

    name: str
    family: str
    summary: str
    shape: Shape
    apply: Callable[[Model], Model]


def model_mutants() -> list[ModelMutant]:
    """All of them, family by family."""
    return [ModelMutant(name, family, summary, SHAPES[shape], apply) for family, name, shape, summary, apply in MUTANTS]


def without_key_visible(inputs: AttentionInputs) -> AttentionInputs:
    return replace(inputs, mask=replace(inputs.mask, key_visible=None))


def scaled(inputs: AttentionInputs) -> AttentionInputs:
    return replace(inputs, scale=inputs.scale * 1.01)


SHAPES: dict[str, Shape] = {
    "both": "encoder-decoder", "decoder": "decoder", "classifier": "classifier", "recurrent": "recurrent", "mixed": "mixed",
}  # fmt: skip
MUTANTS: list[tuple[str, str, str, str, Callable[[Model], Model]]] = [
    ("cache", "cache_one_off", "decoder", "keys stand one position off their values",
     lambda m: with_caches(m, decoding.one_off)),
    ("cache", "cache_keeps_stale", "decoder", "a position once written is never written again",
     lambda m: with_caches(m, decoding.kept)),
    ("cache", "cache_appends", "both", "rollback ignored: new keys go after all that was ever written",
     lambda m: with_caches(m, decoding.appended)),
    ("cache", "cache_forgets", "decoder", "a cache that grows loses what it held",
     lambda m: with_caches(m, decoding.forgets)),
    ("cache", "cache_first_row", "both", "all rows read the values of the first",
     lambda m: with_caches(m, decoding.last_row)),
    ("cache", "cache_turned_again", "decoder", "cached keys are rotated again at every step",
     lambda m: with_caches(m, decoding.turned_again)),
    ("cache", "reorder_keys_only", "both", "reordering forgets the values",
     lambda m: with_caches(m, None, decoding.keys_only)),
    ("cache", "reorder_not_crossed", "both", "reordering forgets the keys and values of the memory",
     decoding.crossed_stay),
    ("cache", "cross_rows_rolled", "both", "each step reads the memory of the row before",
     lambda m: with_step(m, decoding.rolled)),
    ("cache", "offset_stuck", "both", "each step starts again at position 0",
     decoding.offset_stuck),
    ("cache", "padding_of_steps_lost", "decoder", "padding of earlier steps counts as tokens",
     decoding.padding_of_steps_lost),
    ("cache", "cache_wrong_from_64", "decoder", "cached values are those of the position before, from position 64 on",
     lambda m: with_caches(m, decoding.wrong_from(64))),
    ("cache", "cache_wrong_from_row_16", "decoder", "from row 16 on, cached values are those of the row before",
     lambda m: with_caches(m, decoding.wrong_rows_from(16))),
    ("placement", "residual_from_normed", "decoder", "the residual comes from the normed stream",
     layers.residual_from_normed),
    ("placement", "final_norm_skipped", "decoder", "the final norm is not applied",
     layers.final_norm_skipped),
    ("placement", "residual_missing", "both", "a sub-layer replaces the stream",
     layers.residual(lambda self, x, branch: branch)),
    ("placement", "residual_scaled", "both", "the residual is 1 % too large",
     layers.residual(lambda self, x, branch: 1.01 * x + branch)),
    ("placement", "norm_skipped", "both", "one norm does nothing",
     layers.norm_after_dropped),
    ("placement", "layers_swapped", "both", "the layers are applied in reverse order",
     layers.layers_swapped),
    ("feed-forward", "ffn_tokens_mixed", "decoder", "a token's neighbour leaks in, 1 %",
     layers.tokens_mixed),
    ("feed-forward", "activation_missing", "both", "there is no activation between the linear maps",
     layers.activation_missing),
    ("feed-forward", "activation_other", "both", "another activation, 1 % apart",
     layers.activation_other),
    ("feed-forward", "ffn_bias_dropped", "decoder", "a bias is not added",
     layers.bias_dropped),
    ("wiring", "cross_reads_target", "both", "a cross-attention reads its own sequence",
     wiring.cross_reads_target),
    ("wiring", "memory_padding_ignored", "both", "padding of the memory is seen",
     wiring.memory_padding_ignored),
    ("wiring", "causal_one_too_many", "decoder", "a token sees the next one",
     wiring.masked(offset=lambda n: n + 1)),
    ("wiring", "causal_one_too_few", "both", "a token does not see itself",
     wiring.masked(offset=lambda n: n - 1)),
    ("wiring", "causal_missing", "both", "one layer sees everything",
     wiring.masked(causal=lambda _: False)),
    ("wiring", "padding_of_first_row", "decoder", "all rows are padded as the first",
     wiring.masked(key_visible=wiring.first_row)),
    ("wiring", "padding_remembered", "decoder", "the padding of an earlier call is used",
     wiring.padding_remembered),
    ("wiring", "rows_coupled", "decoder", "rows of a batch change each other, 1 %",
     wiring.rows_coupled),
    ("wiring", "no_position", "both", "the position scheme of the embeddings is never applied",
     wiring.no_position),
    ("position", "positions_wrong_from_40", "both", "from position 40 on, embeddings have the position before",
     wiring.positions_stop(40)),
    ("position", "rotation_wrong_from_40", "decoder", "from position 40 on, queries and keys are rotated by half",
     wiring.rotation_changes(40)),
    ("padding", "memory_lengths_ignored", "both", "padding of the memory is seen where it is given by lengths",
     wiring.memory_lengths_ignored),
    ("padding", "lengths_ignored", "both", "padding is seen where it is given by lengths",
     wiring.lengths_ignored),
    ("documents", "documents_ignored", "both", "a document sees the one before it in its row",
     wiring.undivided(False)),
    ("documents", "memory_documents_ignored", "both", "a document attends to all documents of the memory",
     wiring.undivided(True)),
    ("documents", "positions_go_on", "both", "positions do not start again with a document",
     wiring.positions_go_on),
    ("rows", "row_20_wrong", "both", "the batch row 20 gets the output of row 19",
     wiring.row_wrong(20)),
    ("rows", "row_20_wrong_in_encoder", "both", "the batch row 20 of the encoder is 1 % too large",
     wiring.row_of_stack_wrong(20)),
    ("memory gradient", "no_gradient_from_first_cross_attention", "both", "the first cross-attention passes none on",
     wiring.detached_memory(0)),
    ("memory gradient", "no_gradient_from_last_cross_attention", "both", "the last cross-attention passes none on",
     wiring.detached_memory(-1)),
    ("memory gradient", "no_gradient_from_cross_keys", "both", "the keys of a cross-attention pass none on",
     wiring.detached_keys),
    ("sharing", "layers_share_ffn", "both", "two layers have one feed-forward layer",
     layers.shared_module("ffn")),
    ("sharing", "layers_share_weight", "decoder", "two layers have one query weight",
     layers.shared_weight),
    ("sharing", "layers_run_one_ffn", "both", "a layer calls the feed-forward layer of another, and has one of its own",
     layers.other_module_called("ffn")),
    ("wiring", "no_rotation", "decoder", "the rotation is never applied",
     wiring.no_rotation),
    ("wiring", "keys_not_rotated", "decoder", "queries are rotated, keys are not",
     wiring.keys_not_rotated),
    ("wiring", "tied_logits_copied", "both", "the logits use a copy of the table",
     wiring.copied_table(TokenLogits)),
    ("wiring", "shared_table_copied", "both", "the target's embedding uses a copy of the table",
     wiring.copied_table(Tokens)),
    ("wiring", "embedding_scale_dropped", "both", "embeddings are not multiplied by sqrt(d_model)",
     wiring.scale_dropped),
    ("wiring", "attention_scale", "decoder", "scores are 1 % too large",
     wiring.ruled(scale=0.2916)),
    ("wiring", "window_added", "decoder", "a window that the spec does not have",
     wiring.ruled(window=(3, 0))),
    ("wiring", "heads_reversed", "decoder", "key and value heads stand in reverse order",
     wiring.heads_reversed),
    ("product", "query_product", "both", "a query projection is 0.1 % too large",
     products.off("encoder.layers.0.branches.self_attention.query")),
    ("product", "key_product", "both", "a key projection is 0.1 % too large",
     products.off("decoder.layers.1.branches.cross_attention.key")),
    ("product", "value_product", "decoder", "a value projection is 0.1 % too large",
     products.off("body.layers.0.branches.self_attention.value")),
    ("product", "output_product", "decoder", "an output projection is 0.1 % too large",
     products.off("body.layers.1.branches.self_attention.output")),
    ("product", "ffn_input_product", "both", "the first map of a feed-forward layer is 0.1 % too large",
     products.off("decoder.layers.0.branches.ffn.input")),
    ("product", "ffn_gate_product", "decoder", "the gate of a feed-forward layer is 0.1 % too large",
     products.off("body.layers.0.branches.ffn.gate")),
    ("product", "ffn_output_product", "both", "the second map of a feed-forward layer is 0.1 % too large",
     products.off("encoder.layers.0.branches.ffn.output")),
    ("product", "head_product", "both", "logits are 0.1 % too large",
     products.off_node(TokenLogits)),
    ("product", "embedding_rows", "both", "rows of the table are 0.1 % too large",
     products.off_node(Tokens)),
    ("product", "dense_product", "classifier", "a dense node is 0.1 % too large",
     products.off("middle.linear")),
    ("product", "classes_product", "classifier", "the logits of classes are 0.1 % too large",
     products.off("answer.linear")),
    ("product", "functional_product", "both", "torch.nn.functional.linear is 0.1 % too large",
     products.off_function),
    ("product", "every_product", "decoder", "every linear map is 0.1 % too large",
     products.off_everywhere(unless_hooked=False)),
    ("unseen", "every_unhooked_product", "both", "every linear map without hooks is 0.1 % too large",
     products.off_everywhere(unless_hooked=True)),
    ("unseen", "product_while_learning", "both", "a product is 0.1 % too large where gradients are wanted",
     products.off_while(True, "encoder.layers.0.branches.self_attention.query")),
    ("unseen", "product_in_steps", "decoder", "a product is 0.1 % too large in the steps of decoding",
     products.off_in_steps("body.layers.0.branches.self_attention.value")),
    ("gradient", "query_gradient", "both", "the gradients of a query projection are 0.1 % too large",
     products.off("encoder.layers.0.branches.self_attention.query", how=products.wrong_gradient)),
    ("gradient", "key_gradient", "decoder", "the gradients of a key projection are 0.1 % too large",
     products.off("body.layers.0.branches.self_attention.key", how=products.wrong_gradient)),
    ("gradient", "ffn_gradient", "both", "the gradients of a feed-forward layer's map are 0.1 % too large",
     products.off("decoder.layers.1.branches.ffn.output", how=products.wrong_gradient)),
    ("gradient", "head_gradient", "both", "the gradients of logits are 0.1 % too large",
     products.off_node(TokenLogits, how=products.wrong_gradient)),
    ("gradient", "embedding_gradient", "both", "the gradients of embeddings are 0.1 % too large",
     products.off_node(Tokens, how=products.wrong_gradient)),
    ("gradient", "dense_gradient", "classifier", "the gradients of a dense node are 0.1 % too large",
     products.off("middle.linear", how=products.wrong_gradient)),
    ("dropout", "dropout_in_evaluation", "both", "dropout acts in evaluation",
     layers.dropout_in_evaluation),
    ("dropout", "dropout_never", "both", "dropout does not act in training",
     layers.dropout_never),
    ("dropout", "embedding_dropout_never", "both", "the dropout of one embedding does not act",
     layers.dropout_off("source.dropout")),
    ("dropout", "residual_dropout_never", "both", "the dropout of one sub-layer does not act",
     layers.dropout_off("decoder.layers.1.residuals.cross_attention.dropout")),
    ("dropout", "residual_dropout_skipped", "both", "a residual does not call its dropout",
     layers.dropout_not_called),
    ("dropout", "ffn_dropout_never", "both", "the dropout in one feed-forward layer does not act",
     layers.dropout_off("encoder.layers.0.branches.ffn.dropout")),
    ("dropout", "attention_dropout_never", "both", "the attention of one layer drops nothing",
     layers.attention_dropout(0.0)),
    ("dropout", "dropout_a_third", "both", "dropout 0.1 where the spec says 0.3",
     layers.dropout_other(0.1)),
    ("dropout", "attention_dropout_half", "both", "attention dropout 0.1 where the spec says 0.2",
     layers.attention_dropout(0.1)),
    ("dropout", "dropout_unscaled", "both", "what one dropout keeps is not scaled",
     layers.dropout_unscaled),
    ("backend", "backend_ignores_key_visible", "both", "keys that are padding are seen",
     wiring.tampered_backends(without_key_visible)),
    ("backend", "backend_scale", "decoder", "scores are 1 % too large",
     wiring.tampered_backends(scaled)),
    ("formula", "gru_half_state", "recurrent", "h' = 0.5 h + z (n - h)", formulas.broken("gru_half_state")),
    ("formula", "additive_without_tanh", "recurrent", "v . (W q + U k)", formulas.broken("additive_without_tanh")),
    ("formula", "maxout_as_min", "recurrent", "the smaller of two units", formulas.broken("maxout_as_min")),
    ("formula", "layer_mix_halved", "mixed", "0.5 x the mix of layers", formulas.broken("layer_mix_halved")),
    ("formula", "pool_halved", "classifier", "0.5 x the pooled vector", formulas.broken("pool_halved")),
    ("formula", "sinusoids_of_2t", "both", "sinusoids of 2 t", formulas.broken("sinusoids_of_2t")),
    ("formula", "alibi_half_slopes", "mixed", "0.5 x the slopes", formulas.broken("alibi_half_slopes")),
    ("formula", "rotary_half_frequencies", "decoder", "0.5 x the angles", formulas.broken("rotary_half_frequencies")),
    ("formula", "t5_half_buckets", "mixed", "bucket // 2", formulas.broken("t5_half_buckets")),
]  # fmt: skip
