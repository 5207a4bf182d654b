"""`extends`: a spec laid over another, file by file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tfkit import Catalogue, Diagnostic, ModelSpec, SpecError, load_spec

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, text: str) -> Write:
    (tmp_path / "base.yaml").write_text(text + "reference: https://example.org\nexpect: {parameters: 1}\n")

    def put(body: str, name: str = "spec.yaml") -> Path:
        path = tmp_path / name
        path.write_text(body if body.startswith("tfkit") else f"tfkit: 1\nextends: base.yaml\nname: over\n{body}")
        return path

    return put  # type: ignore[return-value]


@pytest.fixture
def load(catalogue: Catalogue, write: Write) -> Callable[[str], ModelSpec]:
    return lambda body: load_spec(write(body), catalogue)  # type: ignore[call-arg]


@pytest.fixture
def diagnostics(catalogue: Catalogue, write: Write) -> Callable[[str], tuple[Diagnostic, ...]]:
    def found(body: str) -> tuple[Diagnostic, ...]:
        with pytest.raises(SpecError) as error:
            load_spec(write(body), catalogue)  # type: ignore[call-arg]
        return error.value.diagnostics

    return found


def layer(spec: ModelSpec, node: str = "encoder"):  # type: ignore[no-untyped-def]
    return spec.nodes[node].options.layers[0]


def test_descriptions_of_a_spec_are_not_inherited(load: Callable[[str], ModelSpec]) -> None:
    spec = load("")
    assert (spec.name, spec.reference, spec.expect.parameters) == ("over", "", None)
    assert list(spec.nodes) == ["source", "target", "encoder", "decoder", "logits"]


def test_mappings_merge_by_key(load: Callable[[str], ModelSpec]) -> None:
    spec = load("defaults: {norm: {eps: 0.5}, attention: {num_kv_heads: 2}}\n")
    assert layer(spec).norm.options.eps == 0.5
    assert layer(spec).sublayers[0].options.num_heads == 4
    assert layer(spec).sublayers[0].options.num_kv_heads == 2


def test_options_lie_over_a_part_that_is_only_named(load: Callable[[str], ModelSpec]) -> None:
    spec = load("defaults: {position: {base: 7.0}, ffn: {activation: {kind: relu}}}\n")
    assert (spec.nodes["source"].options.position.kind, spec.nodes["source"].options.position.options.base) == (
        "sinusoidal",
        7.0,
    )


def test_same_name_keeps_options_and_another_kind_replaces_them(load: Callable[[str], ModelSpec]) -> None:
    assert layer(load("defaults: {norm: layer_norm}\n")).norm.options.eps == 1e-5
    spec = load("defaults: {norm: {kind: rms_norm}}\n")
    assert (layer(spec).norm.kind, layer(spec).norm.options.eps) == ("rms_norm", 1e-6)


def test_lists_replace(load: Callable[[str], ModelSpec]) -> None:
    spec = load("nodes: {encoder: {sublayers: [ffn]}}\noutputs: [logits, encoder]\n")
    assert [part.kind for part in layer(spec).sublayers] == ["ffn"]
    assert spec.outputs == ("logits", "encoder")


def test_layers_replaces_num_layers_and_the_other_way_round(
    load: Callable[[str], ModelSpec], write: Write, catalogue: Catalogue
) -> None:
    spec = load("nodes: {encoder: {layers: [{repeat: 3}, {repeat: 4}]}}\n")
    assert [layer.repeat for layer in spec.nodes["encoder"].options.layers] == [3, 4]
    third = "tfkit: 1\nextends: spec.yaml\nname: third\nnodes: {encoder: {num_layers: 5}}\n"
    path = write(third, "third.yaml")
    assert [layer.repeat for layer in load_spec(path, catalogue).nodes["encoder"].options.layers] == [5]


def test_null_removes(load: Callable[[str], ModelSpec]) -> None:
    spec = load("defaults: {norm: {eps: null}}\nnodes: {logits: null, decoder: null, target: null}\noutputs: [encoder]\n")
    assert list(spec.nodes) == ["source", "encoder"]
    assert layer(spec).norm.options.eps == 1e-5


OWN = ["reference", "description", "expect"]


@pytest.mark.parametrize("key", OWN)
def test_keys_that_are_not_inherited_may_be_removed(
    key: str, load: Callable[[str], ModelSpec], write: Write, catalogue: Catalogue
) -> None:
    spec = load(f"{key}: null\n")
    assert (spec.reference, spec.description, spec.expect.parameters) == ("", "", None)
    third = write("tfkit: 1\nextends: spec.yaml\nname: third\nexpect: null\n", "third.yaml")
    assert load_spec(third, catalogue).expect.parameters is None
    for path in (third, write("", "spec.yaml"), third.parent / "base.yaml"):
        spec = load_spec(path, catalogue, [f"{key}=null"])
        assert (spec.reference, spec.description, spec.expect.parameters)[OWN.index(key)] in ("", None)


def test_a_name_that_is_removed_is_missing(diagnostics: Callable[[str], tuple[Diagnostic, ...]]) -> None:
    [diagnostic] = diagnostics("tfkit: 1\nextends: base.yaml\nname: null\n")
    assert (diagnostic.code, diagnostic.message) == ("TFK030", "`name` is missing")


def test_missing_defaults_cannot_be_removed(write: Write, diagnostics: Callable[[str], tuple[Diagnostic, ...]]) -> None:
    write("tfkit: 1\nname: a\nnodes: {t: {kind: tokens, d_model: 8, vocab_size: 9}}\noutputs: [t]\n", "plain.yaml")
    [diagnostic] = diagnostics("tfkit: 1\nextends: plain.yaml\nname: a\ndefaults: null\n")
    assert (diagnostic.code, diagnostic.message) == ("TFK016", "there is no `defaults` in plain.yaml to remove")


def test_a_null_value_is_refused_with_a_fix(diagnostics: Callable[[str], tuple[Diagnostic, ...]]) -> None:
    [diagnostic] = diagnostics("nodes: {encoder: {checkpoint: null}}\n")
    assert (diagnostic.code, diagnostic.fix) == ("TFK020", "write a value, or leave the key out")


def test_another_kind_of_node_replaces_it(load: Callable[[str], ModelSpec]) -> None:
    spec = load("nodes: {logits: {kind: dense, input: decoder, d_model: 3}}\n")
    assert spec.nodes["logits"].options.d_model == 3


def test_errors_are_located_in_the_file_that_causes_them(
    diagnostics: Callable[[str], tuple[Diagnostic, ...]], tmp_path: Path
) -> None:
    [own] = diagnostics("nodes: {encoder: {num_layers: two}}\n")
    assert own.location
    assert (Path(own.location.file).name, own.location.line, own.location.column) == ("spec.yaml", 4, 31)
    (tmp_path / "base.yaml").write_text((tmp_path / "base.yaml").read_text().replace("d_ff: 128", "d_ff: big"))
    [theirs] = diagnostics("")[:1]
    assert theirs.location
    # `write` writes the base only once: the error is in it now
    assert (Path(theirs.location.file).name, theirs.location.line, theirs.location.column) == ("base.yaml", 11, 15)


def test_missing_keys_cannot_be_removed(diagnostics: Callable[[str], tuple[Diagnostic, ...]]) -> None:
    [diagnostic] = diagnostics("nodes: {encodr: null}\n")
    assert diagnostic.location
    assert (diagnostic.code, diagnostic.location.line, diagnostic.location.column, diagnostic.fix) == (
        "TFK016",
        4,
        9,
        "did you mean `encoder`?",
    )
    assert "no `encodr` in base.yaml" in diagnostic.message


def test_base_that_is_missing_is_named_with_its_neighbour(diagnostics: Callable[[str], tuple[Diagnostic, ...]]) -> None:
    [diagnostic] = diagnostics("tfkit: 1\nname: a\nextends: bse.yaml\n")
    assert diagnostic.location
    assert (diagnostic.code, diagnostic.path, diagnostic.location.line, diagnostic.location.column) == (
        "TFK016",
        "extends",
        3,
        10,
    )
    assert diagnostic.fix == "did you mean `base.yaml`?"


def test_no_file_of_the_chain_is_suggested_as_its_own_base(
    diagnostics: Callable[[str], tuple[Diagnostic, ...]], write: Write, tmp_path: Path, catalogue: Catalogue
) -> None:
    [diagnostic] = diagnostics("tfkit: 1\nname: a\nextends: spec2.yaml\n")
    assert (diagnostic.code, diagnostic.fix) == ("TFK016", "")
    write("tfkit: 1\nname: b\nextends: spec.yaml\n", "spec3.yaml")
    with pytest.raises(SpecError, match=r"`spec2\.yaml` does not exist$"):
        load_spec(tmp_path / "spec3.yaml", catalogue)
    (tmp_path / "spec20.yaml").write_text("")
    [diagnostic] = diagnostics("tfkit: 1\nname: a\nextends: spec2.yaml\n")
    assert diagnostic.fix == "did you mean `spec20.yaml`?"


def test_a_file_is_no_neighbour_for_its_ending_alone(
    diagnostics: Callable[[str], tuple[Diagnostic, ...]], tmp_path: Path
) -> None:
    (tmp_path / "tabs.yaml").write_text("")
    [diagnostic] = diagnostics("tfkit: 1\nname: a\nextends: another-base.yaml\n")
    assert diagnostic.fix == ""
    [diagnostic] = diagnostics("tfkit: 1\nname: a\nextends: tab.yml\n")
    assert diagnostic.fix == "did you mean `tabs.yaml`?"


@pytest.mark.parametrize("value", ["3", "[a.yaml]", "''", "null", "{a: b}"])
def test_extends_names_one_file(value: str, diagnostics: Callable[[str], tuple[Diagnostic, ...]]) -> None:
    [diagnostic] = diagnostics(f"tfkit: 1\nname: a\nextends: {value}\n")
    assert (diagnostic.code, diagnostic.path) == ("TFK020", "extends")


@pytest.mark.parametrize("value", ['"a\\0b"', "x" * 5000, "none/none.yaml", "base.yaml/"])
def test_extends_of_odd_names(value: str, diagnostics: Callable[[str], tuple[Diagnostic, ...]]) -> None:
    [diagnostic] = diagnostics(f"tfkit: 1\nname: a\nextends: {value}\n")
    assert (diagnostic.code, "does not exist" in diagnostic.message) == ("TFK016", True)
    assert len(str(diagnostic)) < 500


@pytest.mark.parametrize("value", [".", "/dev/zero"])
def test_extends_names_a_plain_file(value: str, diagnostics: Callable[[str], tuple[Diagnostic, ...]]) -> None:
    [diagnostic] = diagnostics(f"tfkit: 1\nname: a\nextends: {value}\n")
    assert (diagnostic.code, "not a regular file" in diagnostic.message) == ("TFK016", True)


def test_specs_that_extend_each_other_are_refused(write: Write, diagnostics: Callable[[str], tuple[Diagnostic, ...]]) -> None:
    write("tfkit: 1\nname: b\nextends: spec.yaml\n", "b.yaml")
    [diagnostic] = diagnostics("tfkit: 1\nname: a\nextends: b.yaml\n")
    assert (diagnostic.code, diagnostic.message) == ("TFK016", "a spec extends itself: spec.yaml -> b.yaml -> spec.yaml")
    [diagnostic] = diagnostics("tfkit: 1\nname: a\nextends: ./spec.yaml\n")
    assert diagnostic.code == "TFK016"


def test_long_chain_is_refused(write: Write, diagnostics: Callable[[str], tuple[Diagnostic, ...]]) -> None:
    for number in range(20):
        write(f"tfkit: 1\nname: a\nextends: c{number + 1}.yaml\n", f"c{number}.yaml")
    assert [diagnostic.code for diagnostic in diagnostics("tfkit: 1\nname: a\nextends: c0.yaml\n")] == ["TFK016"]


def test_base_in_another_folder_is_relative_to_the_spec(write: Write, tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "deep").mkdir()
    path = write("tfkit: 1\nname: a\nextends: ../base.yaml\n", "deep/spec.yaml")
    assert load_spec(path, catalogue).name == "a"


def test_syntax_error_of_a_base_is_located_there(write: Write, diagnostics: Callable[[str], tuple[Diagnostic, ...]]) -> None:
    write("tfkit: 1\na: [\n", "broken.yaml")
    [diagnostic] = diagnostics("tfkit: 1\nname: a\nextends: broken.yaml\n")
    assert diagnostic.code == "TFK002"
    assert diagnostic.location
    assert diagnostic.location.file.endswith("broken.yaml")
