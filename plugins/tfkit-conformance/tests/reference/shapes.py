"""Small models that together use every option of every node, sub-layer and position scheme."""

from __future__ import annotations


def recurrent(encoder: str, decoder: str, between: str = "") -> str:
    """An encoder and a decoder of kind `rnn`; `between` is a node that reads the encoder."""
    return f"""
tfkit: 1
name: recurrent
defaults: {{d_model: 6, vocab_size: 23, pad_id: 0}}
nodes:
  source: {{kind: tokens}}
  target: {{kind: tokens, start_id: 1, end_id: 2}}
  encoder: {{kind: rnn, input: source, {encoder}}}
{between}
  decoder: {{kind: rnn, input: target, {decoder}}}
  logits: {{kind: token_logits, input: decoder, vocab_size: 23}}
outputs: [logits]
"""


def stacked(tokens: str = "", body: str = "num_layers: 2", between: str = "", head: str = "", outputs: str = "logits") -> str:
    """Tokens, a causal stack, and a head that reads `body` or the node `between`."""
    return f"""
tfkit: 1
name: stacked
defaults: {{placement: post, norm: layer_norm, attention: {{num_heads: 2}}, ffn: {{d_ff: 10, activation: relu}}}}
nodes:
  tokens: {{kind: tokens, d_model: 12, vocab_size: 23, start_id: 1, end_id: 2, {tokens or "pad_id: 0"}}}
  body: {{kind: stack, input: tokens, causal: true, {body}}}
{between}
  logits: {head or "{kind: token_logits, input: body, vocab_size: 23}"}
outputs: [{outputs}]
"""


def pictured(options: str) -> str:
    """Patches of images, a stack, classes."""
    return f"""
tfkit: 1
name: pictured
defaults: {{placement: pre, norm: layer_norm, attention: {{num_heads: 2}}, ffn: {{d_ff: 10, activation: gelu}}}}
nodes:
  image: {{kind: patches, size: 12, patch: 4, d_model: 8, {options}}}
  body: {{kind: stack, input: image, num_layers: 1}}
  pooled: {{kind: pool, input: body, take: first}}
  label: {{kind: classify, input: pooled, classes: 3}}
outputs: [label]
"""


def heard(convolutions: str, options: str) -> str:
    """Frames of features, convolutions, a stack, classes."""
    return f"""
tfkit: 1
name: heard
defaults: {{placement: pre, norm: layer_norm, attention: {{num_heads: 2}}, ffn: {{d_ff: 10, activation: gelu}}}}
nodes:
  audio: {{kind: features, size: 5}}
  frames: {{kind: convolutions, input: audio, convolutions: [{convolutions}], {options}}}
  body: {{kind: stack, input: frames, num_layers: 1}}
  pooled: {{kind: pool, input: body, take: mean}}
  label: {{kind: classify, input: pooled, classes: 3}}
outputs: [label]
"""


BOTH_WAYS = "bidirectional: true, d_state: 5"
ATTEND = "memory: encoder, d_state: 4"
LOCAL = "local: {half_width: 3}"
RECURRENT = {
    "gru before_cell": recurrent(
        f"cell: gru, {BOTH_WAYS}",
        f"{ATTEND}, cell: gru, cross_attention: {{score: additive}}, initial_state: {{take: first_backward}}, "
        "readout: {kind: maxout, d_model: 5, state: previous}",
    ),
    "gru reset after, between_cells": recurrent(
        f"cell: {{kind: gru, reset: after}}, {BOTH_WAYS}, num_layers: 2",
        f"{ATTEND}, cell: {{kind: gru, reset: after}}, num_layers: 2, "
        "cross_attention: {attend: between_cells, score: concat}, "
        "initial_state: {take: mean, bias: false}",
    ),
    "lstm after_cell": recurrent(
        f"cell: lstm, {BOTH_WAYS}",
        f"{ATTEND}, cell: lstm, num_layers: 2, cross_attention: {{attend: after_cell, score: general, input_feeding: true, "
        f"{LOCAL}}}, initial_state: {{take: last}}, readout: {{kind: tanh, d_model: 5, reads: [context, state]}}",
    ),
    "rnn_tanh local": recurrent(
        "cell: {kind: rnn_tanh, bias: false}, d_state: 4, num_layers: 2",
        f"{ATTEND}, cell: {{kind: rnn_tanh, bias: false}}, num_layers: 2, cross_attention: {{scale: 0.3, {LOCAL}}}, "
        "initial_state: {take: states}, readout: {kind: linear, d_model: 5, bias: false}",
    ),
    "gru_cho, vector in every step": recurrent(
        "cell: {kind: rnn_relu, bias: false}, d_state: 5",
        "memory: v, cell: gru_cho, d_state: 4, num_layers: 2, initial_state: {take: last}, readout: {kind: maxout, d_model: 3}",
        "  v: {kind: pool, input: encoder, take: last}",
    ),
    "initial_width": recurrent(
        f"cell: lstm, {BOTH_WAYS}",
        "memory: mid, d_state: 4, cell: lstm, cross_attention: {score: additive}, initial_state: {take: first_backward}, "
        "initial_width: 3",
        "  mid: {kind: dense, input: encoder, d_model: 8}",
    ),
    "vector in every step": recurrent(
        "cell: {kind: gru, bias: false}, d_state: 5",
        "memory: v, cell: lstm, d_state: 4, num_layers: 2, initial_state: {take: last}, "
        "readout: {kind: maxout, d_model: 3, reads: [input, context, state]}",
        "  v: {kind: pool, input: encoder, take: last, output_norm: layer_norm}",
    ),
}
ATTENTION = {
    "value_residual mean": "num_layers: 2, attention: {value_residual: mean, num_kv_heads: 1}",
    "value_residual learned": "layers: [{repeat: 1}, {repeat: 2, shared: true, attention: {value_residual: learned}}]",
    "value_dim, gate, sink, softcap": "num_layers: 2, position: relative_t5, "
    "attention: {value_dim: 7, head_dim: 5, output_gate: elementwise, sink: true, softcap: 2.0}",
    "headwise gate, norm over all heads": "num_layers: 1, position: rotary_half, attention: {head_dim: 6, output_gate: "
    "headwise, bias: {query: false}, query_key_norm: rms_norm, query_key_norm_over: all_heads, window: 3, scale: 0.4}",
    "keys are values": "num_layers: 2, position: rotary_half, attention: {shared_projection: key_value, num_kv_heads: 1, "
    "value_residual: mean, query_key_norm: rms_norm}",
    "one matrix, no output": "num_layers: 2, attention: {shared_projection: query_key_value, output_projection: false, "
    "output_gate: elementwise}",
    "deepnorm": "placement: deepnorm, sublayers: [{kind: ffn, residual_scale: 0.5}, self_attention, "
    "{kind: ffn, residual_scale: -0.5, activation: swiglu}], num_layers: 2",
    "sandwich": "num_layers: 2, placement: sandwich, attention: {score: additive}",
    "post without residual": "num_layers: 2, placement: {kind: post, residual: false}",
    "pre without residual": "num_layers: 2, placement: {kind: pre, residual: false}",
    "bare sub-layers": "num_layers: 1, placement: {kind: none, residual: false}, norm: none",
    "parallel": "num_layers: 2, placement: {kind: parallel, norms: separate}, attention: {score: concat}",
    "residual_post": "num_layers: 2, placement: residual_post, attention: {score: general, window: [4, 0]}, position: alibi",
}
POSITIONS = [
    "{kind: rotary_half, dims: 4}",
    "{kind: rotary_interleaved, base: 50.0, dims: 2, scaling: {kind: linear, factor: 3.0}}",
    "{kind: rotary_half, scaling: {kind: ntk, factor: 3.0}}",
    "{kind: rotary_half, scaling: {kind: yarn, factor: 3.0, trained_len: 20}}",
    "{kind: rotary_half, scaling: {kind: llama3, factor: 3.0, trained_len: 20}}",
    "{kind: relative_t5, buckets: 7, max_distance: 9, tables: layer}",
    "{kind: relative_shaw, tables: stack, max_distance: 3}",
]
EMBEDDINGS = [
    "{kind: sinusoidal, combine: append, d_position: 3, base: 20.0}",
    "{kind: sinusoidal_halves, combine: concat, d_position: 7, offset: 3}",
    "{kind: sinusoidal, last_frequency: inclusive, count: visible}",
    "{kind: sinusoidal_halves, first_pair: 1}",
    "{kind: learned, max_len: 30, offset: 2, combine: append, d_position: 4, count: visible}",
]
POOLED = "{kind: classify, input: p, classes: 4}"
SHAPES = {
    **RECURRENT,
    **{name: stacked(body=body) for name, body in ATTENTION.items()},
    **{each: stacked(body=f"num_layers: 2, position: {each}") for each in POSITIONS},
    **{
        each: stacked(
            f"pad_id: 0, position: {each}, segments: 3, scale: 0.7, embedding_norm: rms_norm",
            "num_layers: 1, attention: {head_dim: 4}",
        )
        for each in EMBEDDINGS
    },
    **{
        f"pool {take}": stacked(between=f"  p: {{kind: pool, input: body, take: {take}, output_norm: layer_norm}}", head=POOLED)
        for take in ("first", "last", "mean", "max")
    },
    "positions of layers": stacked(
        body="layers: [{repeat: 2, position: {kind: learned, max_len: 30, offset: 2, count: visible}}, {position: sinusoidal}]",
        outputs="logits, body.layers",
    ),
    "mix of recurrent layers": recurrent(
        "cell: gru, d_state: 4, num_layers: 2, bidirectional: true",
        "memory: mix, cell: lstm, d_state: 5, num_layers: 2, cross_attention: {score: general}",
        "  mix: {kind: layer_mix, input: encoder.layers, embeddings: false}",
    ).replace("[logits]", "[logits, decoder.layers]"),
    "probabilities": stacked(between="  probabilities: {kind: probabilities, input: logits}", outputs="logits, probabilities"),
    "pool end_token": stacked(between="  p: {kind: pool, input: body, take: end_token, tokens: tokens}", head=POOLED),
    "span all": stacked(head="{kind: span_logits, input: body, bias: false}"),
    "span second_text": stacked(head="{kind: span_logits, input: body, choose: second_text, tokens: tokens}"),
    **{
        f"mix {flag}": stacked(
            body="num_layers: 2, final_norm: rms_norm",
            between=f"  mix: {{kind: layer_mix, input: body.layers, embeddings: {flag}}}",
            head="{kind: token_logits, input: mix, share: tokens, scale: inverse_sqrt_d_model, softcap: 1.5, bias: frozen}",
            outputs="logits, body.layers",
        )
        for flag in ("true", "false")
    },
    "dense": stacked(
        between="  between: {kind: dense, input: body, activation: tanh, output_norm: rms_norm}",
        head="{kind: token_logits, input: between, vocab_size: 23, bias: true}",
    ),
    "cross": """
tfkit: 1
name: cross
defaults: {d_model: 12, vocab_size: 23, pad_id: 0, placement: pre, norm: layer_norm, attention: {num_heads: 2},
           ffn: {d_ff: 10, activation: geglu}}
nodes:
  source: {kind: tokens}
  target: {kind: tokens, share: source, start_id: 1, end_id: 2}
  encoder: {kind: stack, input: source, num_layers: 1}
  decoder: {kind: stack, input: target, memory: encoder, causal: true, num_layers: 2}
  logits: {kind: token_logits, input: decoder, share: source}
outputs: [logits]
""",
    "similarity": """
tfkit: 1
name: similarity
nodes:
  a: {kind: tokens, d_model: 6, vocab_size: 9, pad_id: 0}
  b: {kind: tokens, d_model: 6, vocab_size: 9, pad_id: 0}
  one: {kind: pool, input: a, take: mean}
  two: {kind: pool, input: b, take: max}
  both: {kind: similarity, inputs: [one, two]}
outputs: [both]
""",
    "image registers": pictured("position: learned, class_token: true, registers: 2, embedding_norm: layer_norm"),
    "image 2d": pictured(
        "position: {kind: sinusoidal_2d, last_frequency: inclusive}, class_token: true, "
        "distillation_token: true, channels: 1, bias: false"
    ),
    "audio stride": heard(
        "{d_model: 6, width: 5, stride: 2, activation: relu, bias: false}, {d_model: 8, width: 2, stride: 2}",
        "position: sinusoidal",
    ),
    "audio even": heard(
        "{d_model: 8, width: 4, stride: 3, activation: gelu}", "position: {kind: learned, max_len: 30, count: visible}"
    ),
}
