"""Adapters of low rank: what a run with `lora` trains, saves and merges. The judges are plain loops and peft itself."""

import json
import shutil
import sys

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

import huggingface_tokenisers
import tfkit
from tfkit import BuildError, InputError, StoreError, load_recipe
from tfkit.cli import main
from tfkit.files import file_record
from tfkit.text import model_in
from tfkit.train import average_checkpoints, resume, train
from tfkit.train.checkpoint import checkpoints_in
from translation_task import write_task

pytestmark = pytest.mark.xdist_group("lora")  # its runs are trained once
LORA = "lora={rank: 3, alpha: 5, targets: [query, ffn.input], dropout: 0.1}"


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parent")
    train(load_recipe(write_task(folder)), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def child(parent, tmp_path_factory):
    folder = tmp_path_factory.mktemp("child")
    train(load_recipe(write_task(folder), [f"pretrained={parent}", LORA, "seed=8"]), folder / "run")
    return folder / "run"


def list_again(place, name):
    versions = json.loads((place / "versions.json").read_text())
    versions["files"][name] = file_record(place / name)
    (place / "versions.json").write_text(json.dumps(versions))


def base_weights(parent):
    return load_file(model_in(parent) / "model.safetensors")


def outputs(model):
    source, target = torch.tensor([[5, 9, 12, 2]]), torch.tensor([[1, 7, 11]])
    return model.eval()(source=source, target=target)["logits"]


def test_merged_weights_are_w_plus_alpha_over_rank_b_a(parent, child, tmp_path):
    before, place = base_weights(parent), model_in(child)
    adapter = load_file(place / "adapter_model.safetensors")
    assert not (place / "model.safetensors").exists()
    assert main(["merge", str(child), "-o", str(tmp_path / "merged")]) == 0
    after = load_file(tmp_path / "merged" / "model.safetensors")
    assert after.keys() == before.keys()
    moved = set()
    for name, weight in before.items():
        layer = name.removesuffix(".weight")
        if f"base_model.model.{layer}.lora_A.weight" not in adapter:
            assert torch.equal(after[name], weight), name
            continue
        a, b = (adapter[f"base_model.model.{layer}.lora_{side}.weight"].double() for side in "AB")
        wanted = weight.double().clone()
        for row in range(weight.shape[0]):
            for column in range(weight.shape[1]):
                for k in range(3):
                    wanted[row, column] += 5 / 3 * b[row, k] * a[k, column]
        torch.testing.assert_close(after[name].double(), wanted, rtol=1e-6, atol=1e-7)
        assert (after[name] - weight).abs().max() > 1e-4
        moved.add(layer.rpartition("branches.")[2])
    assert moved == {"self_attention.query", "cross_attention.query", "ffn.input"}
    texts = ["the old dog sees", "one red house"]
    mine, theirs = (list(tfkit.Translator.load(each).translate(texts)) for each in (tmp_path / "merged", child))
    assert [each.text for each in mine] == [each.text for each in theirs]


def test_peft_loads_the_adapter_onto_the_base(parent, child):
    wrapped = peft.PeftModel.from_pretrained(tfkit.load(parent), model_in(child))
    torch.testing.assert_close(outputs(wrapped), outputs(tfkit.load(child)), rtol=1e-5, atol=1e-5)
    config = json.loads((model_in(child) / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (3, 5, 0.1)
    assert config["base_model_name_or_path"] == str(model_in(parent))


def test_a_resumed_run_has_the_same_bits_and_its_checkpoints_hold_no_base(parent, child, task, tmp_path):
    recipe = load_recipe(task, [f"pretrained={parent}", LORA, "seed=8", "stopping.max_steps=13"])
    train(recipe, tmp_path / "run")
    resume(tmp_path / "run", overrides=["stopping.max_steps=24"])
    for name in ("model", "optimiser", "average"):
        mine, theirs = (load_file(checkpoints_in(each / "checkpoints")[-1] / f"{name}.safetensors")
                        for each in (tmp_path / "run", child))  # fmt: skip
        assert mine.keys() == theirs.keys()
        assert all("lora_" in key for key in mine)
        assert all(torch.equal(mine[key], theirs[key]) for key in mine), name
    saved = model_in(child) / "adapter_model.safetensors"
    assert saved.read_bytes() == (model_in(tmp_path / "run") / "adapter_model.safetensors").read_bytes()


def test_tensors_that_the_base_does_not_give_are_trained_and_saved_whole(parent, task, tmp_path):
    """A decoder with another feed-forward width: peft calls such modules `modules_to_save`."""
    changes = ["model.decoder.ffn.d_ff=24", "lora={targets: [query]}", f"pretrained={parent}", "pretrained_share=0.3"]
    train(load_recipe(task, changes), tmp_path / "run")
    adapter = load_file(model_in(tmp_path / "run") / "adapter_model.safetensors")
    whole = {name for name in adapter if "lora_" not in name}
    ffn = "base_model.model.nodes.decoder.layers.0.branches.ffn."
    assert whole == {f"{ffn}{side}.{name}" for side in ("input", "output") for name in ("weight", "bias")}
    merged = tfkit.load(tmp_path / "run")
    assert torch.equal(merged.state_dict()["nodes.decoder.layers.0.branches.ffn.input.weight"], adapter[f"{ffn}input.weight"])
    base = tfkit.build(merged.spec)
    base.load_state_dict({**base.state_dict(), **{name: tensor for name, tensor in base_weights(parent).items()
                                                  if tensor.shape == base.state_dict()[name].shape}})  # fmt: skip
    wrapped = peft.PeftModel.from_pretrained(base, model_in(tmp_path / "run"))
    torch.testing.assert_close(outputs(wrapped), outputs(merged), rtol=1e-5, atol=1e-5)


def test_an_adapter_of_a_base_that_moved_or_changed(parent, child, tmp_path):
    shutil.copytree(child, run := tmp_path / "run")
    config = model_in(run) / "adapter_config.json"

    data = json.loads(config.read_text())
    changed = [("init_lora_weights", "pissa_niter_4"), ("init_lora_weights", "lora_ga"), ("layer_replication", [[0, 1]])]
    changed += [("use_dora", True), ("kasa_config", {"x": 1}), ("alora_invocation_tokens", [5]), ("key_of_a_later_peft", True)]
    changed += [("trainable_token_indices", [1])]
    for key, value in changed:
        config.write_text(json.dumps({**data, key: value}))
        list_again(model_in(run), "adapter_config.json")
        with pytest.raises(StoreError, match=key):
            tfkit.load(run)
    [target, *_] = data["target_modules"]
    for changes in ({"exclude_modules": [target]}, {"target_modules": ["nothing"]}):
        config.write_text(json.dumps({**data, **changes}))
        list_again(model_in(run), "adapter_config.json")
        with pytest.raises(StoreError, match=r"has factors, and `adapter_config.json` leaves it out by its modules"):
            tfkit.load(run)
    config.write_text(json.dumps({**data, "base_model_name_or_path": str(tmp_path / "gone")}))
    list_again(model_in(run), "adapter_config.json")
    with pytest.raises(StoreError, match=r"is an adapter of .*gone, which cannot be used.*--base DIR"):
        tfkit.load(run)
    assert torch.equal(outputs(tfkit.load(run, base=parent)), outputs(tfkit.load(child)))
    shutil.copytree(model_in(parent), tmp_path / "gone")
    model = tfkit.load(parent)
    model.nodes["encoder"].layers[0].norms["ffn"].bias.data.add_(1)
    tfkit.save(model, tmp_path / "gone", overwrite=True)
    with pytest.raises(StoreError, match=r"other weights than the model that .* was trained on"):
        tfkit.load(run)


def test_factors_are_real_numbers_of_one_dtype_and_there_once(parent, child, tmp_path):
    shutil.copytree(child, run := tmp_path / "run")
    path = model_in(run) / "adapter_model.safetensors"
    tensors = load_file(path)
    factors = {name: tensor for name, tensor in tensors.items() if ".lora_B." in name}
    changes = {
        "float32 and float16": {name: tensor.half() for name, tensor in factors.items()},
        "int32": {name: tensor.int() for name, tensor in tensors.items()},
        "with and without the prefix": {
            name.removeprefix("base_model.model."): tensor.clone() for name, tensor in factors.items()
        },
    }
    for message, change in changes.items():
        save_file({**tensors, **change}, path)
        list_again(model_in(run), path.name)
        with pytest.raises(StoreError, match=rf"TFK082 .*{message}"):
            tfkit.load(run, base=parent)


def test_a_module_that_is_saved_whole_has_tensors(parent, child, tmp_path):
    shutil.copytree(child, run := tmp_path / "run")
    config = model_in(run) / "adapter_config.json"
    data = json.loads(config.read_text())
    config.write_text(json.dumps({**data, "modules_to_save": ["logits"]}))
    list_again(model_in(run), config.name)
    with pytest.raises(StoreError, match=r"TFK082 .*it has no tensor of `logits`, a module of `modules_to_save`"):
        tfkit.load(run, base=parent)


WRONG = {
    "unknown": ("lora={targets: [qery]}", r"TFK132 lora.targets: there is no `qery`; did you mean `query`\?"),
    "no linear map": (
        "lora={targets: [source.embedding]}",
        r"`source.embedding` is an Embedding, and no linear map; linear maps",
    ),
    "rank 0": ("lora={rank: 0}", r"lora.rank: at least 1 is expected"),
    "rank": ("lora={rank: 17}", r"lora.rank: `\S+` has a weight \(16, 16\), whose rank is at most 16, less than 17"),
    "nothing": ("lora={targets: []}", r"lora.targets: "),
    "key": ("lora={ranks: 4}", r"unknown key `ranks`; did you mean `rank`\?"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_adapters_are_refused(wrong, parent, task, tmp_path):
    change, message = WRONG[wrong]
    with pytest.raises(tfkit.TfkitError, match=message):
        train(load_recipe(task, [change, f"pretrained={parent}"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_adapters_need_a_base_with_whole_weights_and_peft(parent, child, task, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"TFK132 lora: .* names none; write `pretrained`"):
        train(load_recipe(task, [LORA]), tmp_path / "run")
    with pytest.raises(InputError, match=r"TFK117 pretrained: .* is an adapter itself, .*tfkit merge"):
        train(load_recipe(task, [LORA, f"pretrained={child}"]), tmp_path / "run")
    with pytest.raises(StoreError, match=r"has adapters, and the mean of their factors is not that of the weights"):
        average_checkpoints(child, None, tmp_path / "mean")
    monkeypatch.setitem(sys.modules, "peft", None)  # Python takes it for not installed
    with pytest.raises(BuildError, match=r"needs the package peft.*pip install 'tfkit-core\[lora\]'"):
        train(load_recipe(task, [LORA, f"pretrained={parent}"]), tmp_path / "run")


def test_a_run_without_adapters_starts_from_merged_weights(child, task, tmp_path):
    still = ["stopping.max_steps=1", "schedule={kind: constant, peak: 1.0e-60}"]
    train(load_recipe(task, [f"pretrained={child}", *still]), tmp_path / "run")
    mine, theirs = tfkit.load(tmp_path / "run").state_dict(), tfkit.load(child).state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_an_imported_classifier_is_tuned_with_adapters_and_a_new_head(tmp_path, capsys):
    """BERT of transformers, with three new labels: the head is trained whole, below it adapters alone."""
    import transformers

    (tmp_path / "pieces").mkdir()
    tokeniser = huggingface_tokenisers.bert(tmp_path / "pieces")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(**sizes, vocab_size=len(tokeniser), num_labels=2, max_position_embeddings=32)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "hf")
    tokeniser.save_pretrained(tmp_path / "hf")
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "start")]) == 0
    rows = [f"the {word} runs here {number}\t{word}" for number in range(12) for word in ("dog", "cat", "man")]
    (tmp_path / "table.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "recipe.yaml").write_text(
        "tfkit: 1\nname: tuned\nmodel: start/spec.yaml\npretrained: start\ndata: {kind: classification, table: table.tsv}\n"
        "lora: {rank: 4}\nschedule: {kind: constant, peak: 1.0e-2}\nstopping: {max_steps: 3}\n"
    )
    assert main(["train", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / "run")]) == 0
    assert "lora: rank 4, alpha 4, of query, value; " in capsys.readouterr().err
    before, after = tfkit.load(tmp_path / "start").state_dict(), tfkit.load(tmp_path / "run").state_dict()
    changed = {name for name in after if before[name].shape != after[name].shape or not torch.equal(before[name], after[name])}
    inside = "nodes.encoder.layers.0.branches.self_attention"
    head = {name for name in after if after[name].shape[:1] == (3,)}
    assert changed == {f"{inside}.query.weight", f"{inside}.value.weight", *head}
    [answer] = tfkit.Classifier.load(tmp_path / "run").classify(["the dog runs here"])
    assert answer.label in ("dog", "cat", "man")
