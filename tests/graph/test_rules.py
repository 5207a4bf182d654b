"""Every rule between fields: its code, its numbers, and the place where the value was written."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

import tfkit
from tfkit import Diagnostic
from tfkit.graph.rules import MODULE_ATTRIBUTES

TRANSLATOR = """nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, share: source}
  encoder: {kind: stack, input: source, num_layers: 2}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 2, causal: true}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
CLASSIFIER = """nodes:
  tokens: {kind: tokens, end_id: 2}
  body:   {kind: stack, input: tokens, num_layers: 1}
  one:    {kind: pool, input: body, take: first}
  label:  {kind: classify, input: one, classes: 3}
outputs: [label]
"""

RECURRENT = """nodes:
  source:  {kind: tokens}
  target:  {kind: tokens}
  encoder: {kind: rnn, input: source, cell: gru, d_state: 8, bidirectional: true}
  decoder:
    {kind: rnn, input: target, memory: encoder, cell: gru, d_state: 8, cross_attention: {score: additive}, readout: {READOUT}}
  body:    {kind: stack, input: decoder, num_layers: 1, causal: true}
  logits:  {kind: token_logits, input: body, share: target}
outputs: [logits]
"""
RECURRENT = RECURRENT.replace("READOUT", "kind: tanh, d_model: 24")

# name: (nodes, what to replace in them, by what, code, place of the changed text or None, pattern)
RULES: dict[str, tuple[str, str, str, str, str | None, str]] = {
    "heads divide d_model": (
        TRANSLATOR, "input: source, num_layers: 2", "input: source, num_layers: 2, attention: {num_heads: 7}", "TFK040",
        "7}", r"d_model 24 is not divisible by num_heads 7; use d_model 21 or 28",
    ),
    "kv heads divide heads": (
        TRANSLATOR, "causal: true", "causal: true, self_attention: {num_kv_heads: 4}", "TFK040",
        "4}", r"num_heads 6 is not divisible by num_kv_heads 4; use a divisor of 6: 1, 2, 3, 6",
    ),
    "rotary needs even dims": (
        TRANSLATOR, "causal: true", "causal: true, position: rotary_half, attention: {head_dim: 5}", "TFK040",
        "rotary_half", r"rotary_half: .*head_dim 5 is odd",
    ),
    "rotary dims within the head": (
        TRANSLATOR, "causal: true", "causal: true, position: {kind: rotary_half, dims: 8}", "TFK040",
        "{kind: rotary_half", r"`dims` 8 is more than head_dim 4",
    ),
    "t5 buckets": (
        TRANSLATOR, "input: source, num_layers: 2", "input: source, num_layers: 2, position: {kind: relative_t5, buckets: 5}",
        "TFK040", "{kind: relative_t5", r"`buckets` 5 is odd",
    ),
    "cross-attention has a memory": (
        CLASSIFIER, "num_layers: 1", "num_layers: 1, causal: true, sublayers: [cross_attention, ffn]", "TFK040",
        "cross_attention", r"`cross_attention` has no memory to read",
    ),
    "a dot product has two equal widths": (
        RECURRENT, "score: additive", "score: dot", "TFK040",
        "dot", r"a dot product of d_state 8 and the 16 features of `encoder`; use `general`",
    ),
    "a recurrent memory is read": (
        RECURRENT, "cross_attention: {score: additive}, ", "", "TFK040",
        "encoder, cell", r"nothing reads the memory `encoder`; write `cross_attention`",
    ),
    "attention of a decoder has a memory": (
        RECURRENT, "memory: encoder, ", "", "TFK040",
        "{score: additive}", r"there is no memory to attend to; write `memory: NODE`",
    ),
    "a vector is not attended to": (
        RECURRENT, "input: source, cell: gru, d_state: 8, bidirectional: true}",
        "input: source, cell: gru, d_state: 8}\n  one: {kind: pool, input: encoder, take: last}\n"
        "  other: {kind: rnn, input: target, memory: one, cell: gru, d_state: 24, cross_attention: {score: general}}\n"
        "  extra: {kind: token_logits, input: other, share: target}", "TFK040",
        "{score: general}", r"`one` is one vector, \(B, 8\), and has nothing to attend to",
    ),
    "a decoder reads from left to right": (
        RECURRENT, "memory: encoder, cell: gru", "memory: encoder, bidirectional: true, cell: gru", "TFK040",
        "true, cell", r"a decoder with a memory reads from left to right only",
    ),
    "a first state needs a memory": (
        RECURRENT, "cell: gru, d_state: 8, bidirectional: true", "cell: gru, d_state: 8, initial_state: {take: last}", "TFK040",
        "{take: last}", r"`take: last` needs a memory",
    ),
    "states are taken from an equal encoder": (
        RECURRENT.replace(", bidirectional: true", "").replace("cross", "initial_state: {take: states}, cross"),
        "cell: gru, d_state: 8}", "cell: lstm, d_state: 9}", "TFK040", "{take: states}",
        r"1 x 1 x 8 states \(layers, tensors, features\), but those of `encoder` are 1 x 2 x 9",
    ),
    "states are those of one direction": (
        RECURRENT, "cross", "initial_state: {take: states}, cross", "TFK040", "{take: states}",
        r"`encoder` is no recurrent node with one direction; take `last` or `mean`",
    ),
    "first_backward needs a backward cell": (
        RECURRENT.replace(", bidirectional: true", ""), "cross", "initial_state: {take: first_backward}, cross", "TFK040",
        "{take: first_backward}", r"`encoder` has no backward cell; take `last` or `mean`, or write `initial_width`",
    ),
    "initial_width is of a backward state": (
        RECURRENT, "memory: encoder, ", "memory: encoder, initial_state: {take: last}, initial_width: 8, ", "TFK040",
        "8, cell: gru, d_state: 8, cross", r"`take: last` takes all features of the memory; remove it",
    ),
    "initial_width is that of the encoder": (
        RECURRENT, "memory: encoder, ", "memory: encoder, initial_state: {take: first_backward}, initial_width: 7, ", "TFK040",
        "7, cell", r"initial_width 7 differs from the backward state of `encoder`, 8",
    ),
    "feeding comes after the cell": (
        RECURRENT, "{score: additive}", "{score: additive, input_feeding: true}", "TFK040",
        "true}, readout", r"`before_cell` feeds the context itself to the cell",
    ),
    "a context after the cell is read": (
        RECURRENT, "{score: additive}, readout: {kind: tanh, d_model: 24}",
        "{score: additive, attend: after_cell}, readout: {kind: tanh, d_model: 24, reads: [state, input]}", "TFK040",
        "[state, input]", r"nothing reads the context, which comes after the cell; add `context`",
    ),
    "a scale is of a dot product": (
        RECURRENT, "{score: additive}", "{score: additive, scale: 0.5}", "TFK040",
        "0.5}", r"`scale` multiplies a dot product, and the score is `additive`",
    ),
    "a read-out reads what there is": (
        RECURRENT, "d_state: 8, bidirectional: true",
        "d_state: 8, readout: {kind: maxout, d_model: 4, reads: [state, context]}", "TFK040",
        "[state, context]", r"there is no context: no attention, and no memory that is one vector",
    ),
    "a memory is read": (
        TRANSLATOR, "causal: true", "causal: true, sublayers: [self_attention, ffn]", "TFK040",
        "encoder, num_layers: 2, causal", r"no sub-layer reads the memory `encoder`",
    ),
    "causal is written where a memory is read": (
        TRANSLATOR, ", causal: true", "", "TFK040", "{kind: stack, input: target", r"must say whether it is causal",
    ),
    "window of one number is causal": (
        TRANSLATOR, "input: source, num_layers: 2", "input: source, num_layers: 2, attention: {window: 3}", "TFK040",
        "3}", r"needs a causal stack; write \[left, right\], for instance \[2, 2\]",
    ),
    "no window between two sequences": (
        TRANSLATOR, "causal: true", "causal: true, cross_attention: {window: [1, 1]}", "TFK040",
        "[1, 1]", r"two different sequences have no window",
    ),
    "names of sub-layers differ": (
        CLASSIFIER, "num_layers: 1", "num_layers: 1, sublayers: [{kind: ffn, name: a}, {kind: ffn, name: a}]", "TFK013",
        None, r"two sub-layers of one layer are called `a`",
    ),
    "layers read the sum of their input and a position": (
        TRANSLATOR, "causal: true", "causal: true, position: {kind: sinusoidal, combine: concat}", "TFK040",
        "{kind: sinusoidal", r"a layer reads the sum of its input and a position; write `combine: add`",
    ),
    "learned positions of layers need max_len": (
        TRANSLATOR, "causal: true", "causal: true, position: learned", "TFK040", "learned", r"learned: `max_len` is needed",
    ),
    "attention's scheme at tokens": (
        TRANSLATOR, "{kind: tokens}", "{kind: tokens, position: rotary_half}", "TFK040",
        "rotary_half", r"rotary_half acts inside attention, not on embeddings",
    ),
    "embeddings' scheme at cross-attention": (
        TRANSLATOR, "causal: true", "causal: true, cross_attention: {position: sinusoidal}", "TFK040",
        "sinusoidal", r"sinusoidal acts on embeddings; write it at the tokens node",
    ),
    "learned needs max_len": (
        TRANSLATOR, "{kind: tokens}", "{kind: tokens, position: learned}", "TFK040", "learned", r"learned: `max_len` is needed",
    ),
    "shared tables have one width": (
        TRANSLATOR, "share: source}\n  encoder", "share: source, d_model: 30}\n  encoder", "TFK040",
        "30}", r"d_model 30 differs from that of `source`, 24",
    ),
    "only tables are shared": (
        TRANSLATOR, "input: decoder, share: source", "input: decoder, share: encoder", "TFK040",
        "encoder}", r"`encoder` is no tokens node and has no table",
    ),
    "logits are as wide as the table": (
        TRANSLATOR, "input: decoder, share: source}", "input: wide, share: source}", "TFK040", "source}",
        r"input is 9 wide, but the table of `source` has d_model 24",
    ),
    "a dense node is not gated": (
        CLASSIFIER, "input: one", "input: two", "TFK040", "swiglu", r"swiglu is gated and needs a second projection",
    ),
    "ids are in the vocabulary": (
        CLASSIFIER, "end_id: 2", "end_id: 19", "TFK040", "19}", r"end_id 19 is outside the vocabulary; ids are 0\.\.18",
    ),
    "a pool needs a sequence": (
        CLASSIFIER, "input: one", "input: two", "TFK040", "one, take", r"`one` is one vector already",
    ),
    "end_token needs tokens": (
        CLASSIFIER, "take: first", "take: end_token", "TFK040", None, r"`take: end_token` needs the tokens node",
    ),
    "end_token needs end_id": (
        CLASSIFIER.replace(", end_id: 2", ""), "take: first", "take: end_token, tokens: tokens", "TFK040", "tokens}",
        r"`tokens` has no end_id",
    ),
    "tokens only for end_token": (
        CLASSIFIER, "take: first", "take: first, tokens: tokens", "TFK040", "tokens}", r"`take: first` reads no token ids",
    ),
    "a stack needs a sequence": (
        CLASSIFIER, "input: one", "input: two", "TFK041", "one, num_layers",
        r"`one` is one vector per row, \(B, 24\); a sequence is needed",
    ),
    "a memory is a sequence": (
        TRANSLATOR, "memory: encoder", "memory: first", "TFK041", "first, num", r"`first` is one vector per row",
    ),
    "a named memory is a sequence": (
        TRANSLATOR, "causal: true", "causal: true, sublayers: [cross_attention, {kind: cross_attention, memory: first}]",
        "TFK041", "first}]", r"`first` is one vector per row",
    ),
    "a mix reads layers": (
        CLASSIFIER, "input: body", "input: mix", "TFK040", None,
        r"`body` is one output, not the layers of a stack; read its port",
    ),
    "only a mix reads layers": (
        CLASSIFIER, "input: body", "input: body.layers", "TFK042", "body.layers",
        r"`body.layers` is the 1 layers of `body`, and a pool reads one output; write `body`, or put a layer_mix",
    ),
    "a mix of recurrent layers has no embeddings": (
        RECURRENT, "memory: encoder", "memory: mix", "TFK040", None,
        r"`encoder.layers` holds the outputs of recurrent layers alone, .*write `embeddings: false`",
    ),
    "no unknown port": (
        CLASSIFIER, "input: body", "input: body.layer", "TFK014", "body.layer", r"did you mean `body.layers`",
    ),
    "everything is read": (
        CLASSIFIER, "outputs: [label]", "outputs: [one]", "TFK043", None, r"nothing reads `label`",
    ),
    "a decoder reads its encoder": (
        TRANSLATOR, "memory: encoder, ", "", "TFK043", None,
        r"nothing reads `encoder`; write `memory: encoder` at `decoder` \(`decoder.memory: encoder`\), add it to",
    ),
    "an output is a port that exists": (
        TRANSLATOR, "outputs: [logits]", "outputs: [logits, encoder.layer]", "TFK014", "encoder.layer",
        r"node `encoder` has no output `layer`; did you mean `encoder.layers`\?",
    ),
    "layers are those of a stack": (
        CLASSIFIER, "outputs: [label]", "outputs: [label, label.layers]", "TFK014", "label.layers",
        r"node `label` has no output `layers`; write `label`",
    ),
    "layers are named once": (
        CLASSIFIER, "outputs: [label]", "outputs: [label, body.layers, body.layers]", "TFK021", "body.layers]",
        r"`body.layers` is written twice",
    ),
    "an output is named once": (
        CLASSIFIER, "outputs: [label]", "outputs: [label, label]", "TFK021", "label]",
        r"`label` is written twice; name every output once",
    ),
    "names of arguments are reserved": (
        CLASSIFIER.replace("tokens:", "batch:").replace("input: tokens", "input: batch"), "end_id: 2", "end_id: 3", "TFK013",
        None, r"`batch` is an argument of every model",
    ),
    "the expected count": (
        CLASSIFIER, "nodes:", "expect: {parameters: 5000}\nnodes:", "TFK044", "5000}",
        r"4,\d\d\d trainable parameters, -[\d,]+ from the 5,000",
    ),
}  # fmt: skip
EXTRA = {
    "a memory is a sequence": "  first: {kind: pool, input: encoder, take: first}\n",
    "a named memory is a sequence": "  first: {kind: pool, input: encoder, take: first}\n",
    "a mix reads layers": "  mix: {kind: layer_mix, input: body}\n",
    "a mix of recurrent layers has no embeddings": "  mix: {kind: layer_mix, input: encoder.layers}\n",
    "a dense node is not gated": "  two: {kind: dense, input: one, activation: swiglu}\n",
    "a pool needs a sequence": "  two: {kind: pool, input: one, take: mean}\n",
    "a stack needs a sequence": "  two: {kind: stack, input: one, num_layers: 1}\n",
    "logits are as wide as the table": "  wide: {kind: dense, input: decoder, d_model: 9}\n",
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule(name: str, errors_of: Callable[..., list[Diagnostic]]) -> None:
    nodes, old, new, code, place, pattern = RULES[name]
    assert nodes.count(old) == 1
    text = nodes.replace(old, new).replace("outputs:", EXTRA.get(name, "") + "outputs:")
    found = errors_of(text)
    diagnostic = next(diagnostic for diagnostic in found if diagnostic.code == code)
    assert re.search(pattern, str(diagnostic)), str(diagnostic)
    assert diagnostic.fix
    assert diagnostic.location is not None
    assert diagnostic.location.file == "spec.yaml"
    assert str(diagnostic).startswith(f"spec.yaml:{diagnostic.location.line}:{diagnostic.location.column}: {code} ")
    if place is not None:
        lines = text.splitlines()
        line = lines[diagnostic.location.line - 10]  # the text stands below nine lines of defaults
        assert line[diagnostic.location.column - 1 :].startswith(place.splitlines()[0]), line[diagnostic.location.column - 1 :]


def test_errors_of_all_nodes_are_reported_in_the_order_of_the_file(errors_of: Callable[..., list[Diagnostic]]) -> None:
    text = (
        TRANSLATOR.replace("{kind: tokens}", "{kind: tokens, pad_id: 19}")
        .replace("input: source, num_layers: 2", "input: source, num_layers: 2, attention: {num_heads: 7}")
        .replace(
            "causal: true",
            "causal: true, self_attention: {num_kv_heads: 4}, position: rotary_half, cross_attention: {head_dim: 3}",
        )
    )
    found = errors_of(text)
    assert [diagnostic.path for diagnostic in found] == [
        "nodes.source.pad_id", "nodes.encoder.attention.num_heads", "nodes.decoder.self_attention.num_kv_heads",
    ]  # fmt: skip
    assert [diagnostic.location for diagnostic in found] == sorted(
        diagnostic.location for diagnostic in found if diagnostic.location
    )


def test_an_inherited_error_is_located_in_defaults_and_reported_once(errors_of: Callable[..., list[Diagnostic]]) -> None:
    found = errors_of(TRANSLATOR, "defaults.attention.num_heads=5")
    assert len({str(diagnostic) for diagnostic in found}) == len(found)
    assert {diagnostic.path for diagnostic in found} == {"defaults.attention.num_heads"}
    assert len(found) == 1


def test_no_rule_is_broken_where_all_is_well(graph_from: Callable[..., tfkit.Graph]) -> None:
    assert graph_from(TRANSLATOR).outputs == ("logits",)
    assert graph_from(CLASSIFIER).outputs == ("label",)


@pytest.mark.parametrize(
    "overrides",
    [
        ["decoder.num_layers=1000000000"],
        ["decoder.num_layers=1000000000", "defaults.d_model=6", "defaults.ffn.d_ff=1"],
        ["decoder.layers=[{repeat: 1000000000, shared: true}]"],
        ["decoder.layers=[{repeat: 100000, layers: [{repeat: 100000}]}]"],
        ["defaults.vocab_size=1000000000000"],
        ["defaults.d_model=1099511627774", "defaults.attention.head_dim=4"],
    ],
)
def test_models_larger_than_any_memory_are_refused_at_once_with_their_bytes(
    overrides: list[str], errors_of: Callable[..., list[Diagnostic]]
) -> None:
    found = errors_of(TRANSLATOR, *overrides)  # unrolled, this would take hours and all memory
    assert {diagnostic.code for diagnostic in found} == {"TFK045"}
    assert all(re.search(r"[\d,]{9,} bytes", diagnostic.message) for diagnostic in found if "shared" not in overrides[0])
    assert all(diagnostic.fix for diagnostic in found)


def test_a_billion_layers_are_counted_exactly(
    graph_from: Callable[..., tfkit.Graph], errors_of: Callable[..., list[Diagnostic]]
) -> None:
    one, two = (graph_from(TRANSLATOR, f"decoder.num_layers={n}").nodes["decoder"].count() for n in (1, 2))
    (diagnostic, *_) = errors_of(TRANSLATOR, "decoder.num_layers=1000000000")
    count = one + 999_999_999 * (two - one)
    assert (
        f"{count:,} parameters, {4 * count:,} bytes in float32" in diagnostic.message
        or f"({4 * count:,} bytes" in diagnostic.message
    )


@pytest.mark.parametrize(
    "name", ["masks", "lengths", "segments", "weights", "batch", "capacity", "prompt", "output", "model", "self"]
)
def test_no_input_is_named_like_an_argument(name: str, errors_of: Callable[..., list[Diagnostic]]) -> None:
    text = f"nodes: {{{name}: {{kind: tokens}}, body: {{kind: stack, input: {name}, num_layers: 1}}}}\noutputs: [body]\n"
    assert [(diagnostic.code, diagnostic.path) for diagnostic in errors_of(text)] == [("TFK013", f"nodes.{name}")]


@pytest.mark.slow
def test_every_attribute_of_torchs_module_dictionary_is_reserved() -> None:
    # In a process of its own: libraries that other tests import put names of theirs on torch's classes.
    code = "import torch; print(*(name for name in dir(torch.nn.ModuleDict()) if not name.startswith('_')))"
    named = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "keys" in named
    assert set(named) <= MODULE_ATTRIBUTES


TINY = """
tfkit: 1
name: a
defaults:
  {d_model: 8, vocab_size: 9, norm: layer_norm, placement: pre, attention: {num_heads: 2}, ffn: {d_ff: 8, activation: relu}}
nodes:
  NODE: {kind: tokens}
  body: {kind: stack, input: NODE, num_layers: 1, causal: true, sublayers: [self_attention, {kind: ffn, name: SUBLAYER}]}
outputs: [body]
"""


@pytest.mark.parametrize(
    ("node", "sublayer", "piece"),
    [("keys", "ffn", "no node can"), ("ids", "pop", "no sub-layer can"), ("type", "ffn", "no node can")],
)
def test_names_that_torch_takes_are_refused(node: str, sublayer: str, piece: str, catalogue: tfkit.Catalogue) -> None:
    spec = tfkit.parse_spec(TINY.replace("NODE", node).replace("SUBLAYER", sublayer), catalogue)
    with pytest.raises(tfkit.SpecError, match="TFK013") as error:
        tfkit.graph_of(spec)
    assert piece in str(error.value)


def test_a_backend_without_padding_serves_a_model_without_padding(catalogue: tfkit.Catalogue) -> None:
    text = TINY.replace("NODE", "ids").replace("SUBLAYER", "mlp")
    plain = dict(tfkit.graph_of(tfkit.parse_spec(text, catalogue)).sites())["body.0.self_attention"]
    padded = dict(tfkit.graph_of(tfkit.parse_spec(text, catalogue, ["ids.pad_id=0"])).sites())["body.0.self_attention"]
    assert plain.mask_terms == {"causal"}
    assert padded.mask_terms == {"causal", "key_visible"}


def test_of_nodes_behind_one_another_the_one_that_nothing_reads_is_named(errors_of: Callable[..., list[Diagnostic]]) -> None:
    nodes = TRANSLATOR.replace("memory: encoder, ", "").replace("share: source}\n  enc", "vocab_size: 40}\n  enc")
    [diagnostic] = errors_of(nodes.replace("input: decoder, share: source", "input: decoder, share: target"))
    assert diagnostic.message == "nothing reads `encoder`"


def test_an_encoder_of_a_recurrent_decoder_has_the_constants_of_an_encoder_alone():
    """Wang et al. 2022, table "DeepNorm", without a stack on the other side: (2 N)^(1/4)."""
    text = """tfkit: 1
name: d
defaults: {d_model: 8, vocab_size: 20}
nodes:
  source: {kind: tokens}
  target: {kind: tokens}
  encoder: {kind: stack, input: source, placement: deepnorm, norm: layer_norm, num_layers: 2, attention: {num_heads: 2}, ffn:
    {d_ff: 8, activation: relu}}
  decoder: {kind: rnn, input: target, memory: encoder, cell: gru, d_state: 8, cross_attention: {score: dot}}
  logits: {kind: token_logits, input: decoder}
outputs: [logits]
"""
    model = tfkit.build(tfkit.parse_spec(text))
    assert {residual.skip for residual in model.nodes["encoder"].layers[0].residuals.values()} == {(2 * 2) ** 0.25}
