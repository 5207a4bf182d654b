"""Every class of error that a spec can have: its code, its place to the column, and what the message must say.

Each row changes one piece of the correct spec of conftest.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tfkit import Catalogue, Diagnostic, PluginError, SpecError, parse_spec
from tfkit.catalogue import BrokenPlugin

LAYERS = "encoder: {kind: stack, input: source, num_layers: 2"
ROWS = {
    # what is replaced, by what, and the errors: (code, line, column, path, a piece of the message)
    "unknown key": ("num_heads: 4", "nuw_heads: 4", [("TFK010", 10, 15, "defaults.attention", "did you mean `num_heads`")]),
    "name of a peer": ("d_model: 64", "hidden_size: 64", [("TFK010", 4, 3, "defaults", "the name here is `d_model`")]),
    "name of a peer in another spelling": (
        "d_model: 64",
        "hiddenSize: 64",
        [("TFK010", 4, 3, "defaults", "the name here is `d_model`")],
    ),
    "our name in another spelling": ("d_model: 64", "dModel: 64", [("TFK010", 4, 3, "defaults", "did you mean `d_model`")]),
    "name of a part of a peer": ("placement: post", "placement: pre_norm", [("TFK012", 8, 14, "defaults.placement", "`pre`")]),
    "part that is lacking": ("activation: relu", "activation: elu", [("TFK012", 11, 32, "defaults.ffn.activation", "known: ")]),
    "value glued to its key in a list": (
        LAYERS,
        LAYERS + ", sublayers: [kind:ffn]",
        [("TFK012", 15, 68, "nodes.encoder.sublayers.0", "write a space after the colon")],
    ),
    "value glued to its key in a block": (
        "attention: {num_heads: 4}",
        "attention:\n    num_heads:4",
        [("TFK020", 11, 5, "defaults.attention", "write a space after the colon")],
    ),
    "name of a peer below": ("num_heads: 4", "n_head: 4", [("TFK010", 10, 15, "defaults.attention", "`num_heads`")]),
    "name of a peer elsewhere": (LAYERS, LAYERS + ", ffn_dim: 8", [("TFK010", 15, 56, "nodes.encoder", "`d_ff`, under `ffn`")]),
    "unknown top key": ("name: small", "name: small\nnods: 1", [("TFK010", 3, 1, "", "did you mean `nodes`")]),
    "wrong place": (LAYERS, LAYERS + ", d_ff: 3", [("TFK018", 15, 56, "nodes.encoder", "it belongs under `ffn`")]),
    "wrong place in defaults": ("pad_id: 0", "num_heads: 4", [("TFK018", 6, 3, "defaults", "it belongs under `attention`")]),
    "wrong place of a sibling": (
        "num_heads: 4",
        "num_heads: 4, memory: source",
        [("TFK018", 10, 29, "defaults.attention", "it belongs under `cross_attention`")],
    ),
    "default of a node": ("pad_id: 0", "checkpoint: true", [("TFK018", 6, 3, "defaults", "a `stack` node")]),
    "option of another kind": (
        "{kind: layer_norm, eps: 1.0e-5}",
        "{kind: layer_norm, unit_offset: true}",
        [("TFK018", 9, 28, "defaults.norm", "rms_norm")],
    ),
    "unused default": (
        "pad_id: 0",
        "pad_id: 0\n  acme_conv: {width: 3}",
        [("TFK011", 7, 3, "defaults.acme_conv", "no node uses the default `acme_conv`")],
    ),
    "unread by layers": (
        LAYERS,
        LAYERS + ", cross_attention: {num_heads: 2}",
        [("TFK019", 15, 56, "nodes.encoder.cross_attention", "no layer here reads")],
    ),
    "wrong type": ("num_layers: 2}", "num_layers: two}", [("TFK020", 15, 53, "nodes.encoder.num_layers", "whole number")]),
    "float for int": (
        "num_layers: 2}",
        "num_layers: 2.0}",
        [("TFK020", 15, 53, "nodes.encoder.num_layers", "`2.0` is written")],
    ),
    "YAML 1.1 number": ("d_ff: 128", "d_ff: 1_28", [("TFK020", 11, 15, "defaults.ffn.d_ff", "write 128")]),
    "digits of Arabic": (
        "d_ff: 128",
        "d_ff: \u0661\u0662\u0668",
        [("TFK020", 11, 15, "defaults.ffn.d_ff", "write 128, in the digits 0 to 9")],
    ),
    "wide digits": (
        "d_ff: 128",
        "d_ff: -\uff11_\uff12",
        [("TFK020", 11, 15, "defaults.ffn.d_ff", "write -12, in the digits 0 to 9")],
    ),
    "YAML 1.1 truth": ("causal: true", "causal: yes", [("TFK020", 16, 81, "nodes.decoder.causal", "write `true`")]),
    "text for number": ("eps: 1.0e-5", "eps: tiny", [("TFK020", 9, 33, "defaults.norm.eps", "a number is expected, `tiny`")]),
    "shape of options": ("attention: {num_heads: 4}", "attention: 4", [("TFK020", 10, 14, "defaults.attention", "a mapping")]),
    "shape of a part": ("position: sinusoidal", "position: [a]", [("TFK020", 7, 13, "defaults.position", "a list is written")]),
    "shape of layers": ("num_layers: 2}", "layers: {}}", [("TFK020", 15, 49, "nodes.encoder.layers", "a list of layers")]),
    "shape of a layer": ("num_layers: 2}", "layers: [3]}", [("TFK020", 15, 50, "nodes.encoder.layers.0", "a mapping")]),
    "shape of sublayers": (LAYERS, LAYERS + ", sublayers: ffn", [("TFK020", 15, 67, "nodes.encoder.sublayers", "a list of")]),
    "shape of a node": ("{kind: tokens}", "tokens", [("TFK020", 13, 12, "nodes.source", "a mapping with `kind`")]),
    "shape of outputs": ("[logits]", "logits", [("TFK020", 18, 10, "outputs", "a list of names is expected")]),
    "shape of nodes": ("nodes:\n", "nodes: 3\ndescription:\n", [("TFK020", 12, 8, "nodes", "`3` is written")]),
    "type inside an option": (
        "num_heads: 4",
        "num_heads: 4, bias: {key: 1}",
        [("TFK020", 10, 41, "defaults.attention.bias.key", "true or false")],
    ),
    "key inside an option": (
        "num_heads: 4",
        "num_heads: 4, bias: {kay: false}",
        [("TFK010", 10, 36, "defaults.attention.bias", "did you mean `key`")],
    ),
    "type of name": ("name: small", "name: 3", [("TFK020", 2, 7, "name", "a name is expected")]),
    "long name": ("name: small", f"name: {'a' * 1001}", [("TFK021", 2, 7, "name", "at most 1,000 characters are")]),
    "type of expect": ("name: small", "name: a\nexpect: {parameters: x}", [("TFK020", 3, 22, "expect.parameters", "whole")]),
    "bound": ("num_layers: 2}", "num_layers: 0}", [("TFK021", 15, 53, "nodes.encoder.num_layers", "at least 1")]),
    "bound of a float": ("eps: 1.0e-5", "eps: -1", [("TFK021", 9, 33, "defaults.norm.eps", "more than 0")]),
    "initialiser beyond float32": (
        "num_heads: 4}",
        "num_heads: 4}\n  init: {kind: uniform, bound: 3.0e+38}",
        [("TFK021", 11, 32, "defaults.init.bound", "at most 1e+37")],
    ),
    "choice": (
        "position: sinusoidal",
        "position: {kind: sinusoidal, combine: ad}",
        [("TFK021", 7, 41, "defaults.position.combine", "did you mean `add`")],
    ),
    "empty list": ("num_layers: 2}", "layers: []}", [("TFK021", 15, 49, "nodes.encoder.layers", "empty")]),
    "empty group": (
        "num_layers: 2}",
        "layers: [{layers: []}]}",
        [("TFK021", 15, 59, "nodes.encoder.layers.0.layers", "empty")],
    ),
    "empty outputs": ("[logits]", "[]", [("TFK021", 18, 10, "outputs", "empty")]),
    "window": ("num_heads: 4", "num_heads: 4, window: 0", [("TFK021", 10, 37, "defaults.attention.window", "`0` is written")]),
    "unknown norm": ("kind: layer_norm", "kind: layernorm", [("TFK012", 9, 16, "defaults.norm", "did you mean `layer_norm`?")]),
    "unknown placement": ("placement: post", "placement: pots", [("TFK012", 8, 14, "defaults.placement", "`post`")]),
    "unknown activation": ("relu", "rellu", [("TFK012", 11, 32, "defaults.ffn.activation", "did you mean `relu`")]),
    "unknown node kind": ("{kind: stack, input: s", "{kind: stak, input: s", [("TFK012", 15, 19, "nodes.encoder", "`stack`")]),
    "unknown sub-layer": (
        LAYERS,
        LAYERS + ", sublayers: [self_atention, ffn]",
        [("TFK012", 15, 68, "nodes.encoder.sublayers.0", "unknown sub-layer kind `self_atention`; did you mean")],
    ),
    "unknown backend in a list": (
        "num_heads: 4",
        "num_heads: 4, backend: [sdpa, eagr]",
        [("TFK012", 10, 45, "defaults.attention.backend.1", "did you mean `eager`")],
    ),
    "misspelt auto": (
        "num_heads: 4",
        "num_heads: 4, backend: atuo",
        [("TFK012", 10, 38, "defaults.attention.backend", "`auto`")],
    ),
    "part of a plugin that is not there": (
        "num_heads: 4",
        "num_heads: 4, backend: acme.flash",
        [("TFK012", 10, 38, "defaults.attention.backend", "tfkit plugins")],
    ),
    "reserved name": (
        "source:  {kind: tokens}",
        "source:  {kind: tokens}\n  outputs: {kind: tokens}",
        [("TFK013", 14, 3, "nodes.outputs", "cannot name a node")],
    ),
    "name with a dot": (
        "source:  {kind: tokens}",
        "source:  {kind: tokens}\n  a.b: {kind: tokens}",
        [("TFK013", 14, 3, "nodes.a.b", "cannot name a node")],
    ),
    "a name with a ligature": (
        "source:  {kind: tokens}",
        "source:  {kind: tokens}\n  \ufb01: {kind: tokens}",
        [("TFK013", 14, 3, "nodes.\ufb01", "cannot name a node")],
    ),
    "the name of an attribute": (
        "source:  {kind: tokens}",
        "source:  {kind: tokens}\n  _modules: {kind: tokens}",
        [("TFK013", 14, 3, "nodes._modules", "cannot name a node")],
    ),
    "one name for two sub-layers": (
        LAYERS,
        LAYERS + ", sublayers: [{kind: ffn, name: x}, {kind: ffn, name: x}], self_attention: {}",
        [("TFK013", 15, 108, "nodes.encoder.sublayers.1", "`x`"), ("TFK019", 15, 113, "nodes.encoder.self_attention", "")],
    ),
    "unknown node": ("input: source", "input: sorce", [("TFK014", 15, 33, "nodes.encoder.input", "did you mean `source`")]),
    "unknown port": (
        "memory: encoder",
        "memory: encoder.layer",
        [("TFK014", 16, 49, "nodes.decoder.memory", "`encoder.layers`")],
    ),
    "port of an owner": ("share: source", "share: source.x", [("TFK014", 14, 34, "nodes.target.share", "write `source`")]),
    "unknown output": ("[logits]", "[logit]", [("TFK014", 18, 11, "outputs.0", "did you mean `logits`")]),
    "memory of a sub-layer": (
        "causal: true",
        "cross_attention: {memory: encodr}",
        [("TFK014", 16, 99, "nodes.decoder.cross_attention.memory", "did you mean `encoder`")],
    ),
    "cycle": (
        "input: source, num",
        "input: decoder, num",
        [("TFK015", 16, 49, "nodes.decoder.memory", "encoder -> decoder -> enc")],
    ),
    "cycle of one": ("memory: encoder", "memory: decoder", [("TFK015", 16, 49, "nodes.decoder.memory", "decoder -> decoder")]),
    "cycle of tables": (
        "source:  {kind: tokens}",
        "source:  {kind: tokens, share: target}",
        [("TFK011", 5, 3, "defaults.vocab_size", ""), ("TFK015", 14, 34, "nodes.target.share", "source -> target -> source")],
    ),
    "kind of an activation": (
        "activation: relu",
        "activation: {}",
        [("TFK022", 11, 32, "defaults.ffn.activation", "gelu_tanh")],
    ),
    "kind of a node": ("{kind: tokens}", "{}", [("TFK022", 13, 12, "nodes.source", "write which node kind")]),
    "kind of a sub-layer": (LAYERS, LAYERS + ", sublayers: [{}]", [("TFK022", 15, 68, "nodes.encoder.sublayers.0", "`kind`")]),
    "kind of an optional norm": (
        LAYERS,
        LAYERS + ", final_norm: {eps: 3}",
        [("TFK022", 15, 68, "nodes.encoder.final_norm", "`kind` is missing")],
    ),
    "missing input": ("input: source, ", "", [("TFK030", 15, 12, "nodes.encoder", "`input` is missing; write it here")]),
    "missing depth": (", num_layers: 2}", "}", [("TFK030", 15, 12, "nodes.encoder", "`num_layers` or `layers` is missing")]),
    "missing options": (
        "d_ff: 128, ",
        "",
        [
            ("TFK030", 15, 12, "nodes.encoder.ffn", "`d_ff` is missing; write it under `ffn`, here or in `defaults`"),
            ("TFK030", 16, 12, "nodes.decoder.ffn", "`d_ff` is missing"),
        ],
    ),
    "missing placement": (
        "  placement: post\n",
        "",
        [("TFK030", 14, 12, "nodes.encoder", "`placement`"), ("TFK030", 15, 12, "nodes.decoder", "`placement`")],
    ),
    "missing norm": (
        "  norm: {kind: layer_norm, eps: 1.0e-5}\n",
        "",
        [("TFK030", 14, 12, "nodes.encoder", "placement `post` needs one"), ("TFK030", 15, 12, "nodes.decoder", "`norm`")],
    ),
    "missing vocabulary": ("  vocab_size: 100\n", "", [("TFK030", 12, 12, "nodes.source", "`vocab_size` is missing")]),
    "missing name": ("name: small\n", "", [("TFK030", 1, 1, "", "`name` is missing")]),
    "missing outputs": ("outputs: [logits]\n", "", [("TFK030", 1, 1, "", "`outputs` is missing")]),
    "shared table with a size": (
        "share: source}",
        "share: source, vocab_size: 100}",
        [("TFK031", 14, 42, "nodes.target.vocab_size", "whose table is shared")],
    ),
    "two depths": (LAYERS, LAYERS + ", layers: [{}]", [("TFK031", 15, 41, "nodes.encoder", "`num_layers` and `layers`")]),
    "newer version": ("tfkit: 1", "tfkit: 2", [("TFK009", 1, 8, "tfkit", "upgrade tfkit")]),
    "no such version": ("tfkit: 1", "tfkit: 0", [("TFK009", 1, 8, "tfkit", "no version 0")]),
    "no version": ("tfkit: 1\n", "", [("TFK009", 1, 1, "tfkit", "write `tfkit: 1`")]),
    "version in words": ("tfkit: 1", "tfkit: one", [("TFK009", 1, 8, "tfkit", "`one` is written")]),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_an_error_is_located(
    row: tuple[str, str, list[tuple[str, int, int, str, str]]], text: str, errors_of: Callable[..., list[Diagnostic]]
) -> None:
    old, new, expected = row
    assert old in text
    found = errors_of(text.replace(old, new, 1))
    places = [
        (diagnostic.code, diagnostic.location.line, diagnostic.location.column, diagnostic.path)
        for diagnostic in found
        if diagnostic.location
    ]
    assert places == [row[:4] for row in expected], "\n".join(map(str, found))
    for diagnostic, (*_, piece) in zip(found, expected, strict=True):
        assert piece in f"{diagnostic.message}; {diagnostic.fix}"
        assert diagnostic.location
        assert diagnostic.location.file == "a.yaml"


def test_correct_spec_has_none(text: str, errors_of: Callable[..., list[Diagnostic]]) -> None:
    assert errors_of(text) == []


def test_error_reads_as_documented(text: str, errors_of: Callable[..., list[Diagnostic]]) -> None:
    bad = text.replace("num_layers: 2}", "num_layers: 2, norm: rms_nrom}", 1)
    assert (
        str(errors_of(bad)[0]) == "a.yaml:15:62: TFK012 nodes.encoder.norm: unknown norm `rms_nrom`; did you mean `rms_norm`?"
    )


MANY = """\
tfkit: 1
nam: many
defaults:
  d_model: 64
  vocab_size: 100
  vocab_size: 100
  position: sinusoidl
  placement: post
  norm: {kind: layer_nrm, eps: .inf}
  attention: {nuw_heads: 8, dropout: 2}
  ffn: {d_ff: big, activation: relu}
  hidden_size: 3
nodes:
  source:  {kind: tokens, scale: sqrt_d_modl}
  target:  {kind: tokens, share: sorce}
  encoder: {kind: stack, input: source, num_layers: 0, memry: target}
  decoder: {kind: stak, input: targt}
  logits:  {kind: token_logits, input: decodr, share: source}
outputs: [logit]
"""


def test_all_errors_of_a_file_are_reported_at_once_and_inherited_ones_once(errors_of: Callable[..., list[Diagnostic]]) -> None:
    found = [
        (diagnostic.code, diagnostic.location.line, diagnostic.location.column)
        for diagnostic in errors_of(MANY)
        if diagnostic.location
    ]
    assert found == [
        ("TFK010", 2, 1),
        ("TFK004", 6, 3),
        ("TFK012", 7, 13),
        ("TFK012", 9, 16),
        ("TFK008", 9, 32),
        ("TFK010", 10, 15),
        ("TFK021", 10, 38),
        ("TFK020", 11, 15),
        ("TFK010", 12, 3),
        ("TFK021", 14, 34),
        ("TFK014", 15, 34),
        ("TFK021", 16, 53),
        ("TFK010", 16, 56),
        ("TFK012", 17, 19),
        ("TFK014", 17, 32),
        ("TFK014", 18, 40),
        ("TFK014", 19, 11),
    ]


def test_name_of_a_broken_plugin_gives_the_import_error(catalogue: Catalogue, text: str) -> None:
    broken = Catalogue(
        catalogue.registered, (BrokenPlugin("acme", "tfkit-acme", "ImportError: no libcuda"),), catalogue.plugins
    )
    with pytest.raises(SpecError) as error:
        parse_spec(text.replace("num_heads: 4", "num_heads: 4, backend: acme.flash"), broken)
    assert "tfkit-acme, which failed to import because ImportError: no libcuda" in str(error.value)


def test_plugin_that_fails_on_its_options_is_named(catalogue: Catalogue, text: str) -> None:
    with pytest.raises(PluginError, match=r"TFK055.*KeyError: 7.*conftest"):
        parse_spec(text.replace("kind: layer_norm, eps: 1.0e-5", "kind: acme.broken, number: 7"), catalogue)


def test_errors_stop_when_the_pipe_is_closed(text: str, errors_of: Callable[..., list[Diagnostic]]) -> None:
    nodes = "".join(f"  n{index}: {{kind: dense, input: nowhere, xyzzy{index}: 1}}\n" for index in range(600))
    found = errors_of(text.replace("nodes:\n", f"nodes:\n{nodes}"))
    assert len(found) == 501
    assert "more than 500" in found[-1].message


def test_empty_defaults_are_no_mapping(errors_of: Callable[..., list[Diagnostic]]) -> None:
    [diagnostic] = errors_of(
        "tfkit: 1\nname: a\ndefaults:\nnodes: {t: {kind: tokens, d_model: 8, vocab_size: 9}}\noutputs: [t]\n"
    )
    assert (diagnostic.code, diagnostic.path, diagnostic.message) == (
        "TFK020",
        "defaults",
        "a mapping is expected, nothing is written",
    )
    assert diagnostic.location
    assert diagnostic.location.line == 3


def test_name_of_a_peer_that_may_stand_here_is_not_sent_elsewhere(
    text: str, errors_of: Callable[..., list[Diagnostic]]
) -> None:
    [diagnostic] = errors_of(text.replace("d_model: 64", "n_embd: 64"))
    assert diagnostic.fix == "the name here is `d_model`"


def test_edge_of_a_sublayer_deep_in_a_pattern_is_checked(text: str, errors_of: Callable[..., list[Diagnostic]]) -> None:
    deep = "layers: [{repeat: 2, layers: [{}, {cross_attention: {memory: encodr}}]}], causal: true"
    [diagnostic] = errors_of(text.replace("num_layers: 2, causal: true", deep))
    assert (diagnostic.code, diagnostic.path) == ("TFK014", "nodes.decoder.layers.0.layers.1.cross_attention.memory")


def test_default_norm_is_not_used_by_a_norm_of_another_kind(errors_of: Callable[..., list[Diagnostic]]) -> None:
    one = "nodes: {t: {kind: tokens, d_model: 8, vocab_size: 9, embedding_norm: layer_norm}}\noutputs: [t]\n"
    assert errors_of(f"tfkit: 1\nname: a\ndefaults: {{norm: {{kind: layer_norm, eps: 0.5}}}}\n{one}") == []
    [diagnostic] = errors_of(f"tfkit: 1\nname: a\ndefaults: {{norm: rms_norm}}\n{one}")
    assert (diagnostic.code, diagnostic.path) == ("TFK011", "defaults.norm")


LEAVE_OUT = [("outputs: [t]", "outputs: []", "write at least one"), ("[t]", "[t]\ndescription: {a: b}", "text is expected")]


@pytest.mark.parametrize(("old", "new", "expected_message"), LEAVE_OUT)
def test_suggested_fixes_work(old: str, new: str, expected_message: str, errors_of: Callable[..., list[Diagnostic]]) -> None:
    text = "tfkit: 1\nname: a\nnodes: {t: {kind: tokens, d_model: 8, vocab_size: 9}}\noutputs: [t]\n"
    [diagnostic] = errors_of(text.replace(old, new))
    assert expected_message in (diagnostic.fix, diagnostic.message.partition(",")[0])


def test_a_key_of_another_place_that_looks_like_one_of_this_place(
    text: str, errors_of: Callable[..., list[Diagnostic]]
) -> None:
    [diagnostic] = errors_of(text.replace("num_layers: 2", "layers: [{repeat: 2, share: true}]", 1))
    assert (diagnostic.code, diagnostic.path) == ("TFK018", "nodes.encoder.layers.0")
    assert diagnostic.fix.endswith("a `tokens` node, or did you mean `shared`?")
