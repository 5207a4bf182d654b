"""Mutants of whole models: `verify` must fail on each of them.

A mutant is an error in a cache, a placement, a feed-forward layer, the wiring, dropout or a backend of one small model
(`kill_matrix.models.tampering`). The package itself is not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tfkit.attention.types import AttentionInputs
from tfkit.nn.model import Model
from tfkit.nn.tokens import TokenLogits, Tokens

from . import broken_decoding as decoding
from . import broken_layers as layers
from . import broken_wiring as wiring
from .tampering import with_caches, with_step

Shape = Literal["encoder-decoder", "decoder"]


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


SHAPES: dict[str, Shape] = {"both": "encoder-decoder", "decoder": "decoder"}
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
    ("dropout", "dropout_in_evaluation", "both", "dropout acts in evaluation",
     layers.dropout_in_evaluation),
    ("dropout", "dropout_never", "both", "dropout does not act in training",
     layers.dropout_never),
    ("backend", "backend_ignores_key_visible", "both", "keys that are padding are seen",
     wiring.tampered_backends(without_key_visible)),
    ("backend", "backend_scale", "decoder", "scores are 1 % too large",
     wiring.tampered_backends(scaled)),
]  # fmt: skip
