"""`tfkit build`, and that what it says is so."""

import json

import pytest
import torch

import tfkit as package
from tfkit import BuildError
from tfkit.cli.device import check_output


def test_json_describes_the_build_and_the_dry_run(tfkit, small):
    data = tfkit("build", small, "--json").json()
    assert data["parameters"] == package.build(small).parameter_count()
    assert data["trial"] == {"inputs": {"source": [3, 8], "target": [3, 7]}, "outputs": {"logits": [3, 7, 11]}}
    assert data["batch"] == {"size": 3, "lengths": {"source": 8, "target": 7}}
    assert (data["device"], data["dtype"], data["seed"], data["directory"]) == ("cpu", "float32", 0, None)
    assert list(data["backends"]) == ["encoder.0-1.self_attention", "decoder.0-2.self_attention", "decoder.0-2.cross_attention"]
    shown = tfkit("show", small, "--json").json()
    assert set(shown) < set(data)
    assert shown["sites"] == data["sites"]


def test_the_tree_shows_shapes_parameters_and_backends(tfkit, small):
    done = tfkit("build", small, "--backend", "sdpa", "--dtype", "float64")
    assert (done.code, done.err) == (0, "")
    words = " ".join(done.out.split())
    assert "3 x layer, post, layer_norm" in words
    assert "decoder.0-2.cross_attention sdpa" in words
    assert "float64" in words
    assert "source (3, 8), target (3, 7) -> logits (3, 7, 11)" in words


@pytest.mark.slow
def test_a_saved_model_is_the_one_that_was_built(tfkit, small, tmp_path):
    place = tmp_path / "out"
    done = tfkit("build", small, "-o", place, "--seed", "5", "--set", "encoder.num_layers=1", "--json")
    assert done.json()["directory"] == str(place)
    loaded = package.load(place).state_dict()
    built = package.build(package.load_spec(small, package.load_catalogue(), ["encoder.num_layers=1"]), seed=5).state_dict()
    assert loaded.keys() == built.keys()
    assert all(torch.equal(loaded[name], built[name]) for name in built)

    again = tfkit("build", small, "-o", place)
    assert (again.code, again.out) == (2, "")
    assert "TFK080" in again.err
    assert "--force" in again.err
    assert package.load(place).state_dict().keys() == built.keys(), "what was there stays"

    assert tfkit("build", small, "-o", place, "--force").code == 0
    assert package.load(place).state_dict().keys() != built.keys()


def test_a_directory_that_is_no_model_is_not_replaced(tfkit, small, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    done = tfkit("build", small, "-o", tmp_path / "mine", "--force")
    assert done.code == 2
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_a_place_that_cannot_be_written_is_a_failure(tfkit, small, tmp_path):
    (tmp_path / "file").write_text("")
    done = tfkit("build", small, "-o", tmp_path / "file" / "out", "--json")
    assert done.code in (1, 2)
    assert done.json()["diagnostics"][0]["code"] in ("TFK080", "TFK081")


def test_a_refused_backend_is_reported_once_for_equal_sites(tfkit, small):
    done = tfkit("build", small, "--backend", "sdpa", "--set", "defaults.attention.softcap=30.0")
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 3
    assert all(
        line.startswith("TFK060 ") and "softcap is not declared (from `defaults.attention.softcap` at --set" in line
        for line in done.err.splitlines()
    )
    assert "eager" in done.err
    data = tfkit("build", small, "--backend", "sdpa", "--set", "defaults.attention.softcap=30.0", "--json").json()
    assert {diagnostic["code"] for diagnostic in data["diagnostics"]} == {"TFK060"}


def test_a_refusal_is_located_and_names_its_site_once(tfkit, small):
    small.write_text(
        small.read_text().replace("num_layers: 3,", "num_layers: 3, self_attention: {backend: sdpa, softcap: 9.0},")
    )
    done = tfkit("build", small)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"{small}:11:99: TFK060 decoder.0-2.self_attention: backend sdpa cannot serve this site: sdpa: ")
    assert done.err.count("decoder.0-2.self_attention") == 1
    wanted = tfkit("build", small, "--backend", "sdpa")
    assert wanted.err.startswith("TFK060 decoder.0-2.self_attention: ")


@pytest.mark.slow
def test_backends_without_backward_are_marked_inference_only(tfkit, small):
    data = tfkit("build", small, "--backend", "flex", "--json").json()
    assert set(data["backends"].values()) == {"flex (inference only)"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--device", "gpu"], "TFK090"),
        (["--device", "cuda:99"], "TFK046"),
        (["--device", "cuda:x"], "TFK090"),
        (["--device", "meta"], "TFK090"),
        (["--dtype", "int8"], "TFK090"),
        (["--seed", "-1"], "TFK090"),
        (["--seed", "1e3"], "TFK090"),
        (["--backend", "none"], "TFK012"),
        (["-o", ""], "TFK090"),
        (["-o", "a\0b"], "TFK090"),
        (["--set", "encoder.num_layers=none"], "TFK020"),
        (["--set", "defaults.d_model=1000000", "--set", "defaults.ffn.d_ff=10000000"], "TFK045"),
    ],
)
def test_wrong_input_is_reported(tfkit, small, words, code):
    done = tfkit("build", small, *words)
    assert (done.code, done.out) == (2, "")
    assert code in done.err
    assert tfkit("build", small, *words, "--json").json()["diagnostics"][0]["code"] == code


def test_a_wrong_spec_is_reported_before_the_build(tfkit, monkeypatch):
    monkeypatch.setattr("tfkit.builder.build", lambda *_, **__: pytest.fail("built"))
    done = tfkit("build", "tests/cli/slips.yaml")
    assert (done.code, len(done.err.splitlines())) == (2, 7)


def test_outputs_that_are_no_numbers_are_a_failure(tfkit, small):
    done = tfkit("build", small, "--dtype", "float16", "--set", "defaults.init={kind: normal, std: 60000.0}")
    assert (done.code, done.out) == (1, "")
    assert "TFK091" in done.err
    with pytest.raises(BuildError, match="TFK091"):
        check_output(["logits"])
    check_output([])


def test_specs_of_every_family_run(tfkit, tmp_path):
    """Pooling at an end token, no padding, a short position table, one vector for a row, several outputs."""
    spec = {
        "tfkit": 1, "name": "family",
        "defaults": {"d_model": 8, "placement": "pre", "norm": "rms_norm", "attention": {"num_heads": 2},
                     "ffn": {"d_ff": 8, "activation": "geglu"}, "position": {"kind": "learned", "max_len": 5}},
        "nodes": {
            "text": {"kind": "tokens", "vocab_size": 3, "end_id": 2},
            "body": {"kind": "stack", "input": "text", "num_layers": 1, "causal": True},
            "end": {"kind": "pool", "input": "body", "take": "end_token", "tokens": "text"},
            "label": {"kind": "classify", "input": "end", "classes": 2},
        },
        "outputs": ["end", "label"],
    }  # fmt: skip
    path = tmp_path / "family.json"
    path.write_text(json.dumps(spec))
    data = tfkit("build", path, "--json").json()
    assert data["trial"] == {"inputs": {"text": [3, 5]}, "outputs": {"end": [3, 8], "label": [3, 2]}}
