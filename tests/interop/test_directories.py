"""Directories as they are found: shards, old names, pickles, damage. Nothing is half-written."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file

import tfkit
from tfkit import InputError, TfkitError
from tfkit.cli import main
from tfkit.files import write_tensors
from tfkit.interop.export import export
from tfkit.interop.huggingface import write
from tfkit.interop.huggingface_import import ORIGIN, plan_import, run_import
from tfkit.interop.kept_tensors import KEPT_FILE
from tfkit.interop.views import constant, converted, real
from tfkit.io.saved_files import other_files

from .models import make


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("hf")
    for name in ("GPT2LMHeadModel", "BertForPreTraining"):
        make(name).save_pretrained(directory / name)
    return directory


@pytest.fixture
def gpt2(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved / "GPT2LMHeadModel", tmp_path / "gpt2"))


@pytest.fixture
def bert(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved / "BertForPreTraining", tmp_path / "bert"))


def weights(directory: Path, catalogue: Any, output: Path) -> dict[str, torch.Tensor]:
    return tfkit.load(run_import(plan_import(directory, catalogue), output, catalogue), catalogue=catalogue).state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rename(directory: Path, change: Any) -> None:
    tensors = load_file(directory / "model.safetensors")
    save_file({change(name): tensor for name, tensor in tensors.items()}, directory / "model.safetensors")


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("Helsinki-NLP/opus-mt-en-de", "hf download Helsinki-NLP/opus-mt-en-de --local-dir opus-mt-en-de"),
        ("bert", "hf download OWNER/bert --local-dir bert"),
        ("../bert", ""), ("a/b/c", ""), ("a b", ""), ("-rf", ""), ("there", ""),
    ],
)  # fmt: skip
def test_what_is_no_directory_may_be_the_id_of_a_published_model(place, line, tmp_path, monkeypatch, catalogue, capsys):
    monkeypatch.chdir(tmp_path)
    Path("there").touch()
    assert main(["import", "-o", "x", "--", place]) == 2
    assert capsys.readouterr().err.rstrip().partition("wrote")[2] == (f", or download a model: {line}" if line else "")


def test_known_spellings_give_the_same_weights(gpt2, bert, tmp_path, catalogue):
    expected = weights(gpt2, catalogue, tmp_path / "a")
    rename(gpt2, lambda name: name.removeprefix("transformer."))
    assert same(weights(gpt2, catalogue, tmp_path / "b"), expected)
    expected = weights(bert, catalogue, tmp_path / "c")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    rename(bert, lambda name: next((name.replace(new, was) for new, was in old.items() if name.endswith(new)), name))
    assert same(weights(bert, catalogue, tmp_path / "d"), expected)
    (tmp_path / "out").mkdir()
    write(tfkit.load(tmp_path / "d"), {ORIGIN: (tmp_path / "d" / ORIGIN).read_text()}, tmp_path / "out")
    assert same(load_file(tmp_path / "out" / "model.safetensors"), load_file(bert / "model.safetensors"))


def test_shards_come_in_and_go_out(gpt2, tmp_path, catalogue):
    expected = weights(gpt2, catalogue, tmp_path / "a")
    theirs = make("GPT2LMHeadModel")
    shutil.rmtree(gpt2)
    theirs.save_pretrained(gpt2, max_shard_size="20KB")
    assert (gpt2 / "model.safetensors.index.json").exists()
    assert same(weights(gpt2, catalogue, tmp_path / "b"), expected)
    (tmp_path / "out").mkdir()
    write(tfkit.load(tmp_path / "b"), {ORIGIN: (tmp_path / "b" / ORIGIN).read_text()}, tmp_path / "out")
    for file in gpt2.iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name


def test_tied_tensors_are_absent_or_equal(gpt2, tmp_path, catalogue):
    expected = weights(gpt2, catalogue, tmp_path / "a")
    tensors = load_file(gpt2 / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"].clone()}, gpt2 / "model.safetensors")
    assert same(weights(gpt2, catalogue, tmp_path / "b"), expected)
    save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1}, gpt2 / "model.safetensors")
    with pytest.raises(TfkitError, match=r"`lm_head\.weight` is not equal to `transformer\.wte\.weight`"):
        weights(gpt2, catalogue, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def damage_missing(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    del tensors["transformer.h.0.ln_1.weight"]
    tensors["transformer.h.0.extra"] = torch.zeros(3)
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"][1:].contiguous()
    save_file(tensors, directory / "model.safetensors")


def damage_pickle(directory: Path) -> None:
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


def damage_link(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "blob")
    (directory / "model.safetensors").symlink_to("blob")


def damage_index(directory: Path) -> None:
    names = load_file(directory / "model.safetensors")
    index = dict.fromkeys(names, "nowhere.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def damage_escape(directory: Path) -> None:
    index = {"wte.weight": "../gpt2/model.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def damage_cut(directory: Path) -> None:
    data = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(data[:-7])


def configured(**changes: Any) -> Any:
    def change(directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**config, **changes}))

    return change


FAULTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "tensors": (
        damage_missing,
        ("h.0.ln_1.weight` (24,) is missing", "h.0.extra` (3,) has no place", "wpe.weight` is (36, 24), and the config"),
    ),
    "pickle": (damage_pickle, ("only pickled weights", "--allow-pickle")),
    "link": (damage_link, ("is a link", "cp -rL")),
    "index": (damage_index, ("names nowhere.safetensors, which does not exist",)),
    "escape": (damage_escape, ("not the plain name",)),
    "cut off": (damage_cut, ("holds no tensors that can be read",)),
    "model type": (configured(model_type="gpt3"), ("`gpt3`", "did you mean `gpt")),
    "experts": (configured(model_type="mixtral"), ("it routes tokens to experts",)),
    "class": (
        configured(architectures=["GPT2ForSequenceClassification"]),
        ("has no map of the class `GPT2ForSequenceClassification`", "GPT2LMHeadModel"),
    ),
    "sizes": (configured(n_head=5), ("`n_head`: `n_embd` 24 is not divisible by `n_head` 5",)),
    "values": (
        configured(activation_function="mish", scale_attn_weights=False),
        ("`activation_function` is `mish`", "`scale_attn_weights` is `false`"),
    ),
    "types": (configured(n_embd="wide"), ("wide",)),
    "nothing": (configured(n_layer=None), ("nodes.body: `n_layer`",)),
    "huge": (configured(n_layer=10**9), ("1,000,000,000 layers",)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_directory_that_does_not_fit_is_refused_before_anything_is_written(name, gpt2, tmp_path, catalogue):
    change, parts = FAULTS[name]
    change(gpt2)
    with pytest.raises(TfkitError) as caught:
        weights(gpt2, catalogue, tmp_path / "out")
    text = "\n".join(map(str, caught.value.diagnostics))
    assert all(part in text for part in parts), text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["Gemma2ForCausalLM", "Qwen3ForCausalLM", "ModernBertModel"])
def test_layers_that_are_listed_one_by_one_are_bounded(name, tmp_path, catalogue):
    make(name).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["layer_types"]
    for number in (10**9, "many"):
        (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": number}))
        with pytest.raises(TfkitError, match=r"`num_hidden_layers` is .*; a whole number up to 10,000 is expected"):
            plan_import(tmp_path, catalogue)


def test_weights_in_one_file_and_in_shards_are_refused(tmp_path, catalogue):
    make("GPT2LMHeadModel").save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(plan_import(tmp_path, catalogue).directory.shards) > 1
    make("GPT2LMHeadModel").save_pretrained(tmp_path / "whole")
    shutil.copy(tmp_path / "whole" / "model.safetensors", tmp_path)
    with pytest.raises(TfkitError, match=r"TFK143 .*model.safetensors and the files of .*, which may hold two models"):
        plan_import(tmp_path, catalogue)


def test_an_untied_head_never_takes_the_place_of_the_table(gpt2, tmp_path, catalogue):
    tensors, config = load_file(gpt2 / "model.safetensors"), json.loads((gpt2 / "config.json").read_text())
    tensors["lm_head.weight"] = tensors.pop("transformer.wte.weight")
    save_file(tensors, gpt2 / "model.safetensors", {"format": "pt"})
    plan = plan_import(gpt2, catalogue)  # tied: one table under its other name
    assert plan.match.spelling["transformer.wte.weight"] == "lm_head.weight"
    (gpt2 / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    for initialise in (False, True):
        with pytest.raises(TfkitError, match=r"TFK143 .*`transformer.wte.weight` \(61, 24\) is missing"):
            plan_import(gpt2, catalogue, initialise=initialise)


def test_a_configuration_that_no_spec_gives_goes_out_as_it_came_in(bert, tmp_path, catalogue):
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    model = tfkit.load(run_import(plan_import(bert, catalogue), tmp_path / "model", catalogue))
    export(model, tmp_path / "out", "hf", texts=other_files(tmp_path / "model"))
    assert json.loads((tmp_path / "out/config.json").read_text()) == {**config, "pad_token_id": None}


FORGED: dict[str, Any] = {
    "files outside": {"files": ["../config.json"]},
    "files that are not there": {"files": ["notes.txt"]},
    "a missing shard": {"shards": {"transformer.wte.weight": "one.safetensors"}},
    "an unknown tensor": {"tied": {"lm_head.weight": "nothing"}},
    "a wrong type": {"prefix": 3},
    "a wrong configuration": {"config.json": []},
    "classes that are a number": {"config.json": {"architectures": 5}},
    "one name of two tensors": {"spelling": dict.fromkeys(("transformer.wte.weight", "transformer.wpe.weight"), "one")},
    "the name of another tensor": {"spelling": {"transformer.wte.weight": "transformer.wpe.weight"}},
    "a file twice": {"files": ["config.json"] * 2},
    "an unknown key": {"more": 1},
    "kept tensors": {},
    "kept tensors of an unknown dtype": {},
    "kept tensors of a weight": {},
    "kept tensors of NaN": {},
}


KEPT = {
    "kept tensors": b"{}",
    "kept tensors of an unknown dtype": save({"mask": torch.ones(2).to(torch.float8_e5m2)}),
    "kept tensors of a weight": save({"transformer.wte.weight": torch.ones(2)}),
    "kept tensors of NaN": save({"mask": torch.full((2,), torch.nan)}),
}


@pytest.mark.parametrize("name", ["shards outside", *FORGED])
def test_a_forged_record_of_an_import_writes_nothing(name, gpt2, tmp_path, catalogue):
    model = tfkit.load(run_import(plan_import(gpt2, catalogue), tmp_path / "model", catalogue))
    record = json.loads((tmp_path / "model" / ORIGIN).read_text())
    outside = {"shards": dict.fromkeys(load_file(gpt2 / "model.safetensors"), "../../escaped.safetensors")}
    texts = {ORIGIN: json.dumps({**record, **FORGED.get(name, outside)})}
    texts |= {KEPT_FILE: KEPT[name]} if name in KEPT else {}
    with pytest.raises(TfkitError):
        export(model, tmp_path / "exported", "hf", texts=texts)
    assert not (tmp_path / "exported").exists()
    assert not list(tmp_path.parent.rglob("escaped*"))


def test_pickled_weights_are_read_on_request_and_run_no_code(gpt2, tmp_path, catalogue):
    expected = weights(gpt2, catalogue, tmp_path / "a")
    damage_pickle(gpt2)
    plan = plan_import(gpt2, catalogue, allow_pickle=True)
    assert same(tfkit.load(run_import(plan, tmp_path / "b", catalogue)).state_dict(), expected)
    torch.save({"transformer.wte.weight": print}, gpt2 / "pytorch_model.bin")
    with pytest.raises(TfkitError, match=r"holds more than weights: it asks for `print`, which is not run"):
        plan_import(gpt2, catalogue, allow_pickle=True)
    (gpt2 / "pytorch_model.bin").write_bytes(b"this is no pickle")
    with pytest.raises(TfkitError, match=r"is no file that torch\.save wrote, or was cut off"):
        plan_import(gpt2, catalogue, allow_pickle=True)
    for other in ({"model": {"transformer.wte.weight": torch.ones(2)}}, {"step": 3}):
        torch.save(other, gpt2 / "pytorch_model.bin")
        with pytest.raises(TfkitError, match=r"TFK143 .*`(model|step)` of the pickled weights is a (dict|int), no tensor"):
            plan_import(gpt2, catalogue, allow_pickle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that nested tensors may change
        nested = torch.nested.nested_tensor([torch.ones(2)])
    forms = {
        "a name that is no text: 5": {5: torch.ones(2)},
        "a strided tensor on meta": {"wte": torch.ones(2, device="meta")},
        "a sparse_coo tensor on cpu": {"wte": torch.ones(2, 2).to_sparse()},
        "a nested tensor on cpu": {"wte": nested},
    }
    for words, weights_of in forms.items():
        torch.save(weights_of, gpt2 / "pytorch_model.bin")
        with pytest.raises(TfkitError, match=rf"TFK143 .*{words}"):
            plan_import(gpt2, catalogue, allow_pickle=True)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("LlamaForCausalLM", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 1e308}}),
        ("LlamaForCausalLM", {"num_attention_heads": 0, "head_dim": None}),
        ("Gemma2ForCausalLM", {"query_pre_attn_scalar": 0}),
        ("ModernBertModel", {"layer_types": []}),
        ("ModernBertModel", {"num_hidden_layers": -1}),
    ],
)
def test_numbers_of_a_configuration_that_nothing_can_be_computed_from_are_errors(kind, changes, tmp_path, catalogue):
    make(kind).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(TfkitError, match="TFK14"):
        plan_import(tmp_path, catalogue)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_weights_are_rounded_as_torch_rounds_them(dtype, gpt2, tmp_path, catalogue):
    expected = weights(gpt2, catalogue, tmp_path / "a")
    model = tfkit.load(run_import(plan_import(gpt2, catalogue, dtype), tmp_path / "b", catalogue))
    assert same(model.state_dict(), {name: tensor.to(getattr(torch, dtype)) for name, tensor in expected.items()})


def test_conversion_of_special_values():
    values = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan"), 1e-45, 3.0e38, 1.00390625, 1.01171875])
    bits = values.view(torch.int32).numpy().view("uint32")
    found = torch.from_numpy(converted(bits, "float32", "bfloat16").view("int16")).view(torch.bfloat16)
    assert torch.equal(found.isnan(), values.isnan())
    assert torch.equal(found[~values.isnan()], values.bfloat16()[~values.isnan()])
    back = real(converted(bits, "float32", "bfloat16"), "bfloat16")
    assert torch.equal(torch.from_numpy(back)[~values.isnan()], found.float()[~values.isnan()])
    with pytest.raises(ValueError, match="too large for float16"):
        converted(bits, "float32", "float16")


def test_files_have_the_bytes_that_the_library_writes(tmp_path):
    tensors = {
        "b": torch.randn(3, 5), "a": torch.randn(7).half(), "c": torch.randn(2, 2).double(), "é": torch.randn(1),
        "d": torch.randn(4).bfloat16(), "i": torch.arange(3), "u": torch.tensor([1, 2], dtype=torch.uint8),
        "t": torch.tensor(True), "e": torch.zeros(0, 3),
    }  # fmt: skip
    save_file(tensors, tmp_path / "theirs", {"format": "pt"})
    shapes = {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()}

    def read(name: str) -> Any:
        return tensors[name].contiguous().flatten().view(torch.uint8).numpy()

    record = write_tensors(tmp_path / "ours", shapes, read, {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert record.bytes == (tmp_path / "ours").stat().st_size


def test_no_shard_is_read_after_one_with_many_other_tensors(gpt2, catalogue):
    tensors = load_file(gpt2 / "model.safetensors")
    save_file({**tensors, **{f"x{number}": torch.zeros(0) for number in range(30)}}, gpt2 / "a.safetensors")
    (gpt2 / "b.safetensors").write_text("no tensors")
    (gpt2 / "model.safetensors").unlink()
    listed = {**dict.fromkeys(tensors, "a.safetensors"), "transformer.wte.weight": "b.safetensors"}
    (gpt2 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    with pytest.raises(TfkitError) as error:
        plan_import(gpt2, catalogue)
    assert len(error.value.diagnostics) == 20
    assert all(" is not listed for a.safetensors, which holds it" in each.message for each in error.value.diagnostics)


def test_an_index_of_very_many_tensors_is_refused(gpt2, catalogue):
    names = {f"{number}": f"{number}.safetensors" for number in range(200_001)}
    (gpt2 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(TfkitError, match=r"TFK082 .*index.json is not valid JSON: it holds more than 200,000 values"):
        plan_import(gpt2, catalogue)


def test_an_index_that_points_outside_and_a_pointer_of_git_lfs_are_named(gpt2, catalogue):
    weights = gpt2 / "model.safetensors"
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    with pytest.raises(TfkitError, match=r"model\.safetensors.*: it is a pointer of Git LFS, .* was not downloaded"):
        plan_import(gpt2, catalogue)
    weights.unlink()
    (gpt2 / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": "../b/model.safetensors"}}))
    with pytest.raises(
        TfkitError, match=r"index\.json: the file of `a\.weight` is `\.\./b/model\.safetensors`, not the plain name of a file"
    ):
        plan_import(gpt2, catalogue)


def test_a_table_of_positions_is_compared_by_its_shape_before_it_is_computed(tmp_path, catalogue):
    make("WhisperForConditionalGeneration").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    rows, width = config["max_source_positions"], config["d_model"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_source_positions": 2**31}))
    message = rf"embed_positions\.weight` is \({rows}, {width}\), and \({2**31}, {width}\) by the configuration"
    with pytest.raises(TfkitError, match=message):
        plan_import(tmp_path, catalogue)


def test_a_table_of_positions_that_nothing_bounds_is_not_computed():
    with pytest.raises(InputError, match=r"`max_source_positions` x `d_model` is 2,147,483,648 x 384, "):
        constant("whisper_positions", {"max_source_positions": 2**31, "d_model": 384})
