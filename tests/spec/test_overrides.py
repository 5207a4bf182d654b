"""`--set key.path=value`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tfkit import Catalogue, Diagnostic, ModelSpec, SpecError, load_spec, parse_spec

SpecOf = Callable[..., ModelSpec]
ErrorsOf = Callable[..., list[Diagnostic]]


def test_nodes_may_be_left_out(text: str, spec_of: SpecOf) -> None:
    short, long = spec_of(text, "encoder.num_layers=12"), spec_of(text, "nodes.encoder.num_layers=12")
    assert short == long
    assert short.nodes["encoder"].options.layers[0].repeat == 12
    assert spec_of(text, "encoder.num_layers=2") == spec_of(text)


def test_the_last_override_wins(text: str, spec_of: SpecOf) -> None:
    assert spec_of(text, "name=a", "name=b").name == "b"


def test_part_that_is_only_named_takes_options(text: str, spec_of: SpecOf) -> None:
    position = spec_of(text, "defaults.position.base=7.0").nodes["source"].options.position
    assert (position.kind, position.options.base) == ("sinusoidal", 7.0)


def test_another_kind_replaces_the_options(text: str, spec_of: SpecOf) -> None:
    for override in ("defaults.norm=rms_norm", "defaults.norm.kind=rms_norm", "defaults.norm={kind: rms_norm}"):
        norm = spec_of(text, override).nodes["encoder"].options.layers[0].norm
        assert (norm.kind, norm.options.eps) == ("rms_norm", 1e-6)


@pytest.mark.parametrize("last", ["defaults.norm=rms_norm", "defaults.norm.kind=rms_norm", "defaults.norm={kind: rms_norm}"])
def test_an_override_that_a_later_one_replaces_is_reported(text: str, errors_of: ErrorsOf, last: str) -> None:
    (diagnostic,) = errors_of(text, "defaults.norm.eps=1e-3", last)
    assert (diagnostic.code, diagnostic.location.file, diagnostic.location.column) == (
        "TFK017",
        "--set defaults.norm.eps=1e-3",
        19,
    )
    assert diagnostic.message == f"it has no effect: `--set {last}`, which comes after it, replaces this value"


def test_an_override_that_a_later_one_sets_again_is_not_reported(text: str, spec_of: SpecOf) -> None:
    norm = spec_of(text, last := "defaults.norm=rms_norm", "defaults.norm.eps=1e-3", last, "defaults.norm.eps=1e-4")
    assert norm.nodes["encoder"].options.layers[0].norm.options.eps == 1e-4
    assert spec_of(text, "defaults.norm.kind=layer_norm", "defaults.norm=rms_norm") == spec_of(text, last)
    layers = [f"encoder.layers=[{items}]" for items in ("{repeat: 2}, {repeat: 3}", "{repeat: 5}")]
    assert [layer.repeat for layer in spec_of(text, *layers).nodes["encoder"].options.layers] == [5]


def test_layers_and_their_number_take_each_other_away(text: str, errors_of: ErrorsOf) -> None:
    (diagnostic,) = errors_of(text, "encoder.num_layers=3", "encoder.layers=[{repeat: 5}]")
    assert diagnostic.location.file == "--set encoder.num_layers=3"


def test_a_path_of_very_many_keys_is_an_error(text: str, errors_of: ErrorsOf) -> None:
    (diagnostic,) = errors_of(text, f"encoder{'.a' * 30_000}=1")
    assert diagnostic.message == "a path has at most 40 keys, and this one has 30,001"


def test_new_option_of_a_node(text: str, spec_of: SpecOf) -> None:
    spec = spec_of(text, "encoder.attention.num_heads=8", "encoder.ffn={dropout: 0.5}")
    attention, ffn = spec.nodes["encoder"].options.layers[0].sublayers
    assert (attention.options.num_heads, ffn.options.dropout, ffn.options.d_ff) == (8, 0.5, 128)
    assert spec.nodes["decoder"].options.layers[0].sublayers[0].options.num_heads == 4


def test_items_of_lists_go_by_number(text: str, spec_of: SpecOf) -> None:
    pattern = text.replace("num_layers: 2}", "layers: [{repeat: 2}, {repeat: 3, sublayers: [self_attention, ffn]}]}", 1)
    layers = (
        spec_of(pattern, "encoder.layers.1.repeat=9", "encoder.layers.1.sublayers.1.residual_scale=0.5")
        .nodes["encoder"]
        .options.layers
    )
    assert [layer.repeat for layer in layers] == [2, 9]
    assert [part.options.residual_scale for part in layers[1].sublayers] == [1.0, 0.5]
    assert spec_of(text, "outputs.0=encoder").outputs == ("encoder",)
    assert len(spec_of(pattern, "encoder.layers.0=null").nodes["encoder"].options.layers) == 1


def test_an_item_of_a_list_has_one_number(text: str, errors_of: ErrorsOf) -> None:
    pattern = text.replace("num_layers: 2}", "layers: [{repeat: 2}, {repeat: 3}]}", 1)
    for number in ("01", "²", "+1"):
        (diagnostic,) = errors_of(pattern, f"encoder.layers.{number}.repeat=9")
        assert diagnostic.message == f"there is no item `{number}`"


def test_num_layers_replaces_layers(text: str, spec_of: SpecOf) -> None:
    pattern = text.replace("num_layers: 2}", "layers: [{repeat: 2}, {repeat: 3}]}", 1)
    assert [layer.repeat for layer in spec_of(pattern, "encoder.num_layers=7").nodes["encoder"].options.layers] == [7]


def test_null_and_nothing_remove(text: str, spec_of: SpecOf) -> None:
    for override in ("defaults.pad_id=null", "defaults.pad_id="):
        assert spec_of(text, override).nodes["source"].options.pad_id is None


def test_null_where_nothing_is_written_is_a_value(text: str, spec_of: SpecOf) -> None:
    windowed = text.replace("num_heads: 4", "num_heads: 4, window: 3")
    attention = spec_of(windowed, "encoder.attention.window=null").nodes["encoder"].options.layers[0].sublayers[0]
    assert attention.options.window is None


def test_whole_node_can_be_added(text: str, spec_of: SpecOf) -> None:
    spec = spec_of(text, "nodes.first={kind: pool, input: encoder, take: first}", "outputs=[logits, first]")
    assert spec.nodes["first"].kind == "pool"


def test_defaults_can_be_added(spec_of: SpecOf) -> None:
    bare = "tfkit: 1\nname: a\nnodes: {t: {kind: tokens, vocab_size: 9}}\noutputs: [t]\n"
    assert spec_of(bare, "defaults.d_model=8").nodes["t"].options.d_model == 8


@pytest.mark.parametrize(
    ("override", "code", "column", "path", "message"),
    [
        ("encodr.num_layers=3", "TFK017", 1, "encodr.num_layers", "did you mean `encoder`"),
        ("nodes.encodr.num_layers=3", "TFK017", 1, "nodes.encodr.num_layers", "did you mean `encoder`"),
        ("encoder.num_layers", "TFK017", 1, "encoder.num_layers", "key.path=value"),
        ("=3", "TFK017", 1, "", "key.path=value"),
        ("a..b=3", "TFK017", 1, "a..b", "key.path=value"),
        ("tfkit=1", "TFK017", 1, "tfkit", "cannot be overridden"),
        ("extends=a.yaml", "TFK017", 1, "extends", "cannot be overridden"),
        ("name.x=1", "TFK017", 1, "name.x", "`name` has no keys"),
        ("outputs.4=x", "TFK017", 1, "outputs.4", "items go from 0 to 0"),
        ("dropout=0.2", "TFK017", 1, "dropout", "write `defaults.dropout`"),
        ("attention.num_heads=2", "TFK017", 1, "attention.num_heads", "write `defaults.attention.num_heads`"),
        ("pooled={kind: pool}", "TFK017", 1, "pooled", "a new node is written `nodes.pooled={...}`"),
        ("outputs.x=x", "TFK017", 1, "outputs.x", "no item `x`"),
        ("encoder.num_layers=two", "TFK020", 20, "nodes.encoder.num_layers", "`two` is written"),
        ("encoder.atention.num_heads=8", "TFK010", 28, "nodes.encoder", "did you mean `attention`"),
        ("encoder.norm={kind: rms_nrom}", "TFK012", 21, "nodes.encoder.norm", "did you mean `rms_norm`"),
        ("encoder.input=sorce", "TFK014", 15, "nodes.encoder.input", "did you mean `source`"),
        ("encoder.num_layers=[", "TFK002", 21, "", ""),
        ("encoder.num_layers=.inf", "TFK008", 20, "nodes.encoder.num_layers", "not finite"),
        ("encoder.num_layers=&a 3", "TFK005", 20, "nodes.encoder.num_layers", "anchor"),
        ("encoder.num_layers=\udcff", "TFK003", 20, "", "UTF-8"),
    ],
)
def test_an_error_is_located_in_the_override(
    override: str, code: str, column: int, path: str, message: str, text: str, errors_of: ErrorsOf
) -> None:
    [diagnostic] = errors_of(text, override)
    assert diagnostic.location
    assert (diagnostic.code, diagnostic.path, diagnostic.location.line) == (code, path, 1), str(diagnostic)
    assert message in f"{diagnostic.message}; {diagnostic.fix}"
    assert diagnostic.location.file.startswith("--set ")
    assert diagnostic.location.column == column


def test_errors_of_overrides_and_file_are_reported_together(text: str, errors_of: ErrorsOf) -> None:
    found = errors_of(text.replace("d_ff: 128", "d_ff: x"), "encodr.a=1", "decoder.num_layers=y")
    assert sorted(diagnostic.code for diagnostic in found) == ["TFK017", "TFK020", "TFK020"]


EXPECTING = """
tfkit: 1
name: a
expect: {parameters: 72}
nodes: {t: {kind: tokens, d_model: 8, vocab_size: 9}}
outputs: [t]
"""


def test_an_override_removes_expect_unless_it_sets_it(catalogue: Catalogue) -> None:
    assert parse_spec(EXPECTING, catalogue, ["name=b"]).expect.parameters == 72
    assert parse_spec(EXPECTING, catalogue, ["t.vocab_size=10"]).expect.parameters is None
    assert parse_spec(EXPECTING, catalogue, ["t.vocab_size=10", "expect.parameters=80"]).expect.parameters == 80


def test_the_number_of_overrides_is_limited():
    with pytest.raises(SpecError, match="TFK017 30,000 overrides are given, and at most 1,000 are read"):
        load_spec("specs/tiny-alibi.yaml", overrides=[f"defaults.k{number}=1" for number in range(30_000)])


def test_the_values_that_overrides_are_compared_with_are_limited():
    """80 overrides of 900 values took 8 s."""
    many = ", ".join(f"k{key}: 1" for key in range(900))
    with pytest.raises(SpecError, match="TFK017 80 overrides are compared with more than 600,000 values of the spec in all"):
        load_spec("specs/tiny-alibi.yaml", overrides=[f"nodes.n{number}={{{many}}}" for number in range(80)])
