"""`tfkit diff`."""

import json

import pytest

from tfkit import build, load_spec, save
from tfkit.io import read_saved

BASE, BIG, PRENORM = (f"specs/transformer-{name}.yaml" for name in ("base", "big", "prenorm"))


def fields(data):
    return {(row["field"], tuple(row["where"])): (row["a"], row["b"]) for row in data["fields"]}


def test_fields_of_equal_layers_are_one_row(tfkit):
    done = tfkit("diff", BASE, BIG, "--json")
    assert done.code == 1
    data = done.json()
    attention = ("encoder.0-5.self_attention", "decoder.0-5.self_attention", "decoder.0-5.cross_attention")
    assert fields(data) == {
        ("d_model", ("source", "target")): (512, 1024),
        ("dropout", ("source", "target", "encoder.0-5", "decoder.0-5")): (0.1, 0.3),
        ("num_heads", attention): (8, 16),
        ("d_ff", ("encoder.0-5.ffn", "decoder.0-5.ffn")): (2048, 4096),
    }
    assert {row["name"]: (row["a"], row["b"]) for row in data["counts"]}["parameters"] == (63_082_496, 214_245_376)
    assert sum(row["b"] - row["a"] for row in data["nodes"]) == 214_245_376 - 63_082_496


def test_tensors_and_counts_agree_with_the_models(tfkit, catalogue):
    """A names exactly the tensors that the built models have, and their sizes."""
    import torch

    pair = [build(load_spec(file, catalogue), catalogue, device="meta").state_dict() for file in (BASE, PRENORM)]
    a, b = ({name: tuple(tensor.shape) for name, tensor in state.items()} for state in pair)
    data = tfkit("diff", BASE, PRENORM, "--json").json()
    assert a.keys() < b.keys()
    assert [row["name"] for row in data["tensors"]] == [
        "nodes.source.position.*", "nodes.target.*", "nodes.encoder.final_norm.*", "nodes.decoder.final_norm.*",
    ]  # fmt: skip
    assert all(row["a"] is None for row in data["tensors"])
    assert sum(row["b"]["tensors"] for row in data["tensors"]) == len(b.keys() - a.keys())
    assert sum(row["b"]["parameters"] for row in data["tensors"]) == sum(torch.Size(b[name]).numel() for name in b.keys() - a)


def test_layers_are_compared_by_their_place(tfkit, small, tmp_path):
    """Patterns that differ only in how they are written are equal. Further layers are one row."""
    other = tmp_path / "other.yaml"
    other.write_text(small.read_text().replace("num_layers: 3", "layers: [{repeat: 2}, {repeat: 1}]"))
    assert tfkit("diff", small, other).out.splitlines()[-1] == "EQUAL: the models are the same."
    one = small.read_text().replace("num_layers: 3", "layers: [{repeat: 2}, {repeat: 2, sublayers: [self_attention, ffn]}]")
    other.write_text(one)
    data = tfkit("diff", small, other, "--json").json()
    assert fields(data) == {
        ("num_layers", ("decoder",)): (3, 4),
        ("sub-layer", ("decoder.2.cross_attention",)): ("cross_attention", None),
    }
    assert [row["name"] for row in data["tensors"]] == [
        "nodes.decoder.layers.2.branches.cross_attention.*", "nodes.decoder.layers.2.norms.cross_attention.*",
        "nodes.decoder.layers.3.*",
    ]  # fmt: skip
    other.write_text(small.read_text().replace("num_layers: 2", "layers: [{repeat: 2, shared: true}]"))
    data = tfkit("diff", small, other, "--json").json()
    assert fields(data) == {("shared", ("encoder.0-1",)): (False, True)}
    assert [row["name"] for row in data["tensors"]] == ["nodes.encoder.layers.1.*"]


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        ("defaults.norm=rms_norm", ("norm", {"kind": "layer_norm", "eps": 1e-05, "bias": True, "affine": True})),
        ("defaults.norm={kind: layer_norm, eps: 1.0e-6}", ("norm.eps", 1e-05)),
        ("encoder.sublayers=[ffn, self_attention]", ("sublayers", ["self_attention", "ffn"])),
        ("outputs=[logits, encoder]", ("outputs", ["logits"])),
        ("encoder.attention.window=[3, 3]", ("window", None)),
        ("defaults.attention.backend=[sdpa, eager]", ("backend", "auto")),
        ("defaults.attention.dropout=0.25", ("dropout", 0.0)),
    ],
)
def test_one_change_is_one_row(tfkit, small, changed, row):
    done = tfkit("diff", small, small, "--set", changed, "--json")
    assert done.code == 1
    [found] = done.json()["fields"]
    assert (found["field"], found["a"]) == row
    assert found["a"] != found["b"]


def test_names_and_expectations_are_not_compared(tfkit, small):
    changed = ["--set", "name=other", "--set", "description=new", "--set", "reference=https://a.b"]
    done = tfkit("diff", small, small, *changed)
    assert (done.code, done.err) == (0, "")


def test_saved_models(tfkit, small, tmp_path, catalogue):
    spec = load_spec(small, catalogue)
    directories = {}
    for name, seed, dtype in (("one", 0, "float32"), ("two", 1, "float32"), ("half", 0, "bfloat16")):
        import torch

        model = build(spec, catalogue, seed=seed, dtype=getattr(torch, dtype))
        directories[name] = save(model, tmp_path / name, catalogue=catalogue)
    assert tfkit("diff", directories["one"], directories["one"]).code == 0
    assert tfkit("diff", small, directories["two"]).code == 0  # a spec has no values
    data = tfkit("diff", directories["one"], directories["two"], "--json").json()
    assert (data["equal"], data["fields"], data["tensors"]) == (False, [], [])
    assert [row["name"] for row in data["saved"]] == ["weights"]
    assert len({row for each in data["saved"] for row in (each["a"], each["b"])}) == 2
    done = tfkit("diff", directories["one"], directories["half"])
    assert done.code == 1
    assert "DIFFERENT: dtype of the weights, values of the weights." in done.out
    weights = next(line for line in done.out.splitlines() if line.startswith("weights "))
    assert "-50.0%" in weights
    assert read_saved(directories["half"], catalogue).versions.dtype == "bfloat16"
    done = tfkit("diff", small, directories["one"], "--set", "name=other")
    assert (done.code, "is a saved model" in done.err) == (2, True)
    weights = directories["one"] / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    done = tfkit("diff", directories["two"], directories["one"])  # the digest that a listing states is not that of the file
    assert (done.code, "TFK082" in done.err, str(weights) in done.err) == (2, True, True)
    assert tfkit("diff", small, directories["one"]).code == 0


def test_wrong_inputs(tfkit, small, tmp_path):
    missing = tfkit("diff", small, tmp_path / "nothing.yaml")
    assert (missing.code, "nothing.yaml" in missing.err) == (2, True)
    empty = tfkit("diff", tmp_path, small)
    assert empty.code == 2
    assert "name a directory that `tfkit build -o` or `tfkit train -o` wrote" in empty.err
    unknown = tfkit("diff", small, small, "--lengths", "sorce=4", "--json")
    assert unknown.code == 2
    assert json.loads(unknown.out)["diagnostics"][0]["fix"] == "did you mean `source`?"
    deep = tfkit("diff", small, small, "--set", "encoder.num_layers=100000001")
    assert (deep.code, "TFK045" in deep.err) == (2, True)
    recipe = tfkit("diff", small, "specs/recipes/sample.yaml")
    assert recipe.code == 2


def test_lengths_are_those_of_inputs_that_a_model_has(tfkit):
    data = tfkit("diff", BASE, "specs/gpt2.yaml", "--json", "--lengths", "source=8,target=4,tokens=5", "--batch", 2).json()
    assert data["a"]["batch"] == {"size": 2, "lengths": {"source": 8, "target": 4}}
    assert data["b"]["batch"] == {"size": 2, "lengths": {"tokens": 5}}


def test_a_narrow_terminal_loses_nothing(tfkit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    done = tfkit("diff", BASE, "specs/gpt2.yaml")
    assert all(len(line) <= 72 and line == line.rstrip() for line in done.out.splitlines())
    assert "…" not in done.out
    assert "\x1b" not in done.out
