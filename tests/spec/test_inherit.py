"""How defaults reach nodes, layers and sub-layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tfkit import Diagnostic, ModelSpec
from tfkit.slots.layer import depth

SpecOf = Callable[..., ModelSpec]
ENCODER = "encoder: {kind: stack, input: source, num_layers: 2"


def parts(spec: ModelSpec, node: str = "encoder", layer: int = 0) -> dict[str, Any]:
    return {part.options.name: part.options for part in spec.nodes[node].options.layers[layer].sublayers}


def test_defaults_reach_only_nodes_that_have_the_field(text: str, spec_of: SpecOf) -> None:
    spec = spec_of(text)
    source, target, logits = (spec.nodes[name].options for name in ("source", "target", "logits"))
    assert (source.d_model, source.vocab_size, source.pad_id, source.position.kind) == (64, 100, 0, "sinusoidal")
    assert (target.vocab_size, logits.vocab_size) == (None, None)
    assert source.embedding_norm.kind == "none"


def test_default_sublayers_follow_the_memory(text: str, spec_of: SpecOf) -> None:
    spec = spec_of(text)
    assert list(parts(spec)) == ["self_attention", "ffn"]
    assert list(parts(spec, "decoder")) == ["self_attention", "cross_attention", "ffn"]


def test_nearer_wins(text: str, spec_of: SpecOf) -> None:
    layers = (
        "encoder: {kind: stack, input: source, attention: {num_heads: 2, dropout: 0.2}, self_attention: {softcap: 9.0}, "
        "layers: ["
        "{repeat: 2, attention: {softcap: 3.0}, layers: [{}, {attention: {num_heads: 16}, norm: {eps: 0.5}}]}, "
        "{sublayers: [{kind: self_attention, num_heads: 32}, ffn]}]"
    )
    spec = spec_of(text.replace(ENCODER, layers))
    group, last = spec.nodes["encoder"].options.layers
    heads = [
        (options.num_heads, options.dropout, options.softcap)
        for options in (part.options for layer in (*group.layers, last) for part in layer.sublayers)
        if hasattr(options, "num_heads")
    ]
    assert heads == [(2, 0.2, 3.0), (16, 0.2, 3.0), (32, 0.2, 9.0)]
    assert [layer.norm.options.eps for layer in group.layers] == [1e-5, 0.5]
    assert group.placement is None


def test_general_key_is_under_the_specific_one_within_a_place(text: str, spec_of: SpecOf) -> None:
    spec = spec_of(text.replace("attention: {num_heads: 4}", "cross_attention: {num_heads: 2}\n  attention: {num_heads: 4}"))
    assert parts(spec, "decoder")["self_attention"].num_heads == 4
    assert parts(spec, "decoder")["cross_attention"].num_heads == 2
    nearer = spec_of(
        text.replace("attention: {num_heads: 4}", "cross_attention: {num_heads: 2}\n  attention: {num_heads: 4}"),
        "decoder.attention.num_heads=8",
    )
    assert parts(nearer, "decoder")["cross_attention"].num_heads == 8


def test_names_of_repeated_and_foreign_sublayers(text: str, spec_of: SpecOf) -> None:
    subs = ENCODER + ", sublayers: [{kind: ffn, residual_scale: 0.5}, self_attention, acme.conv, ffn, {kind: ffn, name: last}]"
    spec = spec_of(text.replace(ENCODER, subs))
    assert list(parts(spec)) == ["ffn", "self_attention", "acme_conv", "ffn_2", "last"]
    assert parts(spec)["ffn"].residual_scale == 0.5


def test_a_default_norm_gives_options_but_adds_no_norm(text: str, spec_of: SpecOf) -> None:
    wide = text.replace("eps: 1.0e-5", "eps: 0.25")
    assert parts(spec_of(wide))["self_attention"].query_key_norm.kind == "none"
    spec = spec_of(
        wide, "encoder.attention.query_key_norm=layer_norm", "source.embedding_norm=layer_norm", "encoder.final_norm=rms_norm"
    )
    assert parts(spec)["self_attention"].query_key_norm.options.eps == 0.25
    assert spec.nodes["source"].options.embedding_norm.options.eps == 0.25
    assert spec.nodes["encoder"].options.final_norm.options.eps == 1e-6
    nearer = spec_of(wide, "source.embedding_norm={kind: layer_norm, eps: 0.5}")
    assert nearer.nodes["source"].options.embedding_norm.options.eps == 0.5


def test_final_norm_is_the_placements_answer_unless_written(text: str, spec_of: SpecOf) -> None:
    assert spec_of(text).nodes["encoder"].options.final_norm.kind == "none"
    pre = text.replace("placement: post", "placement: pre")
    final = spec_of(pre).nodes["encoder"].options.final_norm
    assert (final.kind, final.options.eps) == ("layer_norm", 1e-5)
    assert spec_of(pre, "encoder.final_norm=none").nodes["encoder"].options.final_norm.kind == "none"
    last = spec_of(pre, "encoder.layers=[{}, {norm: rms_norm}]")
    assert last.nodes["encoder"].options.final_norm.kind == "rms_norm"


@pytest.mark.parametrize(
    ("position", "tokens", "layers"),
    [
        ("sinusoidal", "sinusoidal", "none"),
        ("rotary_half", "none", "rotary_half"),
        ("alibi", "none", "alibi"),
        ("none", "none", "none"),
    ],
)
def test_position_reaches_the_place_where_it_acts(position: str, tokens: str, layers: str, text: str, spec_of: SpecOf) -> None:
    spec = spec_of(text.replace("sinusoidal", position))
    assert spec.nodes["source"].options.position.kind == tokens
    assert spec.nodes["encoder"].options.layers[0].position.kind == layers
    cross = parts(spec, "decoder")["cross_attention"]
    assert cross.position.kind == "none"


def test_position_of_one_layer(text: str, spec_of: SpecOf) -> None:
    spec = spec_of(
        text.replace("sinusoidal", "{kind: rotary_half, base: 9.0}"),
        "encoder.layers=[{}, {position: none}, {position: {base: 3.0}}]",
    )
    found = [layer.position for layer in spec.nodes["encoder"].options.layers]
    assert [part.kind for part in found] == ["rotary_half", "none", "rotary_half"]
    assert [part.options.base for part in found if part.kind != "none"] == [9.0, 3.0]


def test_default_number_of_layers(text: str, spec_of: SpecOf) -> None:
    bare = text.replace(", num_layers: 2", "").replace("pad_id: 0", "num_layers: 5")
    spec = spec_of(bare, "decoder.layers=[{repeat: 3}]")
    assert depth(spec.nodes["encoder"].options.layers) == 5
    assert depth(spec.nodes["decoder"].options.layers) == 3


def test_placement_without_norms_needs_none(text: str, spec_of: SpecOf) -> None:
    bare = text.replace("  norm: {kind: layer_norm, eps: 1.0e-5}\n", "").replace("placement: post", "placement: none")
    assert spec_of(bare).nodes["encoder"].options.layers[0].norm.kind == "none"


def test_null_is_a_value_within_one_file(text: str, spec_of: SpecOf) -> None:
    windowed = text.replace("num_heads: 4", "num_heads: 4, window: 3")
    spec = spec_of(windowed.replace(ENCODER, ENCODER + ", attention: {window: null}"))
    assert (parts(spec)["self_attention"].window, parts(spec, "decoder")["self_attention"].window) == (None, 3)


def test_list_of_backends_replaces(text: str, spec_of: SpecOf) -> None:
    spec = spec_of(text.replace("num_heads: 4", "num_heads: 4, backend: [sdpa, eager]"), "decoder.attention.backend=auto")
    assert [part.kind for part in parts(spec)["self_attention"].backend] == ["sdpa", "eager"]
    assert [part.kind for part in parts(spec, "decoder")["self_attention"].backend] == ["auto"]


def test_an_unused_default_is_not_reported_if_a_node_is_unknown(text: str, errors_of: Callable[..., list[Diagnostic]]) -> None:
    found = errors_of(
        text.replace("pad_id: 0", "pad_id: 0\n  acme_conv: {width: 3}").replace(
            "{kind: stack, input: t", "{kind: stak, input: t"
        )
    )
    assert [diagnostic.code for diagnostic in found] == ["TFK012"]
