"""What CTranslate2 cannot express is refused with its place in the spec, all of it at once."""

from __future__ import annotations

import pytest

import tfkit
from fixtures import SPECS
from tfkit import graph_of
from tfkit.interop.ctranslate2.refusals import ACTIVATIONS, reasons

from .engine import DEFAULTS, ENCODER, LANGUAGE, NODES

ACCEPTED = {
    "anarcii", "bart-base", "bert-base", "gpt-char", "gpt2", "llama3-8b", "marian", "qwen3-0.6b", "t5-small", "t5-v1.1-small",
    "tiny-geglu", "tiny-glu", "tiny-no-position", "tiny-reglu", "tiny-relative-shaw", "tiny-tanh", "transformer-tiny",
}  # fmt: skip
NORM_EPS = "`source.embedding_norm.eps` 0.001, `encoder.norm.eps` 1e-05, `decoder.norm.eps` 1e-05"
GATED = "`encoder.self_attention.output_gate` is headwise: the engine has none"
REFUSED = [
    (["encoder.placement=deepnorm"], ["`encoder.placement` is deepnorm: the engine does not multiply the residual"]),
    (["decoder.placement=residual_post"], ["`decoder.placement` is residual_post: the engine has no norm after"]),
    (["encoder.placement=none"], ["`encoder.placement` is none: the engine adds the residual only beside a norm"]),
    (["encoder.placement={kind: post, residual: false}"], ["`encoder.placement.residual` is false: the engine adds the input"]),
    (["decoder.placement=parallel"], ["`decoder.placement` is parallel: the engine has parallel sub-layers only in a model"]),
    (["encoder.norm=none"], ["`encoder.norm` is none: the engine has layer_norm and rms_norm"]),
    (["encoder.position=alibi", "source.position=none"], ["`encoder.position` is alibi: the engine has ALiBi only in the"]),
    (["decoder.position=alibi"], ["`target.position` is sinusoidal and `decoder.position` alibi: the engine has one"]),
    (["encoder.position={kind: relative_t5, tables: layer}", "source.position=none"], ["`encoder.position.tables` is layer"]),
    (["encoder.position={kind: rotary_half, scaling: {kind: yarn, factor: 2.0, trained_len: 64}}", "source.position=none"],
     ["`encoder.position.scaling` is yarn: the engine has linear, ntk, llama3"]),
    (["encoder.position=sinusoidal"],
     ["`encoder.position` is sinusoidal: the engine adds positions to embeddings, not to the input of every layer"]),
    (["source.position={kind: sinusoidal, combine: concat}"], ["`source.position.combine` is concat"]),
    (["source.segments=2"], ["`source.segments`: the engine has segments only in an encoder without a decoder"]),
    (["target.end_id=null"], ["`target.end_id` is missing: the engine ends a text with this token"]),
    (["encoder.causal=true"], ["`encoder.causal` is true: the engine's encoder sees all tokens"]),
    (["encoder.self_attention.window=[2, 2]"], ["`encoder.self_attention.window`: the engine's encoder has no window"]),
    (["decoder.self_attention.window=[null, 0]"], ["`decoder.self_attention.window` is [None, 0]: the engine's window"]),
    (["decoder.self_attention.softcap=5.0"], ["`decoder.self_attention.softcap` is 5: the engine has a softcap only for"]),
    (["decoder.self_attention.sink=true"], ["`decoder.self_attention.sink`: the engine has no attention sinks"]),
    (["encoder.self_attention.output_gate=headwise"], [GATED]),
    (["encoder.self_attention={shared_projection: key_value, output_projection: false}"],
     ["`encoder.self_attention.shared_projection` is key_value: the engine has none",
      "`encoder.self_attention.output_projection` is false: the engine has one in every attention"]),
    (["encoder.self_attention.value_residual=mean"], ["`encoder.self_attention.value_residual` is mean"]),
    (["encoder.self_attention.value_dim=5"], ["`encoder.self_attention.value_dim` is 5: the engine's value heads have"]),
    (["decoder.cross_attention.score=general"], ["`decoder.cross_attention.score` is general: the engine has the dot"]),
    (["decoder.cross_attention.query_key_norm=layer_norm"], ["`decoder.cross_attention.query_key_norm`: the engine norms"]),
    (["decoder.cross_attention.position=relative_t5"], ["`decoder.cross_attention.position` is relative_t5"]),
    (["encoder.self_attention={query_key_norm: layer_norm, query_key_norm_over: all_heads}"],
     ["`encoder.self_attention.query_key_norm_over` is all_heads: the engine norms each head"]),
    (["decoder.ffn.activation=relu_squared"],
     [f"`decoder.ffn.activation` is relu_squared: the engine has {', '.join(ACTIVATIONS)}"]),
    (["encoder.layers=[{}, {sublayers: [self_attention, ffn, ffn]}]"], ["`encoder.layers`: the sub-layers are self_attention"]),
    (["encoder.layers=[{}, {ffn: {activation: gelu}}]"], ["`encoder.layers`: activation differs between layers (relu, gelu)"]),
    (["encoder.layers=[{sublayers: [self_attention, {kind: ffn, residual_scale: 0.5}]}]"], ["`encoder.ffn.residual_scale` is"]),
    (["source.embedding_norm={kind: layer_norm, eps: 1.0e-3}"], [NORM_EPS]),
    (["nodes.mixed={kind: layer_mix, input: encoder.layers}", "decoder.memory=mixed"],
     ["`mixed`: the engine has no counterpart of a `layer_mix` node"]),
    (["encoder.self_attention={softcap: 5.0, output_gate: headwise}", "decoder.placement=deepnorm"],
     ["`encoder.self_attention.softcap` is 5", GATED, "`decoder.placement` is deepnorm"]),
]  # fmt: skip


def found(catalogue, changes, nodes=NODES):
    return reasons(graph_of(tfkit.parse_spec(DEFAULTS + nodes, catalogue, changes)))


@pytest.mark.parametrize(("changes", "expected"), REFUSED, ids=[changes[0] for changes, _ in REFUSED])
def test_every_reason_is_given_with_its_place(catalogue, changes, expected):
    said = found(catalogue, changes)
    assert [reason[: len(start)] for reason, start in zip(said, expected, strict=True)] == expected


def test_models_without_an_encoder_or_a_decoder(catalogue):
    prompts = "`body.self_attention.window`: the engine reads a prompt in pieces"
    assert [each[: len(prompts)] for each in found(catalogue, ["body.self_attention.window=3"], LANGUAGE)] == [prompts]
    (order,) = found(catalogue, ["body.causal=false"], LANGUAGE)
    assert order.startswith("nodes: the engine runs an encoder-decoder with one source")
    assert found(catalogue, ["first.take=mean", "pooled.output_norm=layer_norm"], ENCODER) == [
        "`first`: the engine's pooler reads the first vector, without a norm",
        "`pooled.output_norm`: the engine's pooler has no norm",
    ]


def test_the_shipped_specs_that_are_accepted(catalogue):
    graphs = {path.stem: graph_of(tfkit.load_spec(path, catalogue)) for path in sorted(SPECS.glob("*.yaml"))}
    assert {name for name, graph in graphs.items() if not reasons(graph)} == ACCEPTED
