"""What an import does not read is named with the reason, and names of classes that cannot be printed are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from command_line import Done
from interop.models import make

pytestmark = pytest.mark.slow


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    make("ViTForImageClassification").save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def configure(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


NAMES = {"0": "cat", "1": "dog", "2": "owl"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({**NAMES, "1": "cat"}, "classes 0 and 1 have the same label `cat`"),
        ({**NAMES, "1": "cat\nforged"}, r"the label `cat\nforged` holds the control character U+000A"),
        ({**NAMES, "1": "\u202e"}, "holds the control character U+202E"),
        ({**NAMES, "1": ""}, "a label is empty"),
        ({**NAMES, "1": 7}, 'it has no text for the key "1"'),
        ({"0": "cat", "1": "dog", "3": "owl"}, 'it has no text for the key "2"'),
        ({"0": "cat", "1": "dog", "02": "owl"}, 'it has no text for the key "2"'),
        ({"0": "cat", "1": "dog", "x": "owl"}, 'it has no text for the key "2"'),
    ],
)
def test_names_of_classes_are_one_text_each(
    names: dict[str, Any], message: str, vit: Path, command: Callable[..., Done]
) -> None:
    configure(vit, id2label=names)
    for words in (["-o", "out"], ["--dry-run"]):
        done = command("import", str(vit), *words)
        assert done.code == 2
        assert done.err.startswith(f"TFK142 {vit}/config.json: `id2label`: ")
        assert message in done.err
        assert 'with the keys "0" to "2"' in done.err
    assert not Path("out").exists()


def test_names_of_classes_are_kept(vit: Path, command: Callable[..., Done]) -> None:
    configure(vit, id2label=NAMES, label2id={name: int(number) for number, name in NAMES.items()})
    done = command("import", str(vit), "-o", "out")
    assert (done.code, "not read of" in done.out) == (0, False)
    assert json.loads(Path("out/labels.json").read_text()) == ["cat", "dog", "owl"]
    configure(vit, id2label=None, label2id=None)
    assert command("import", str(vit), "-o", "unnamed", "--dtype", "float32").code == 2  # `classes` of another size


def test_keys_that_are_not_read_are_named_with_the_reason(vit: Path, command: Callable[..., Done]) -> None:
    configure(vit, id2label=NAMES, label2id={"cat": 2}, auto_map={"AutoModel": "code.Model"}, num_beams=4, max_length=30)
    done = command("import", str(vit), "-o", "out")
    out = done.out
    assert done.code == 0
    assert "  not read of config.json: `auto_map`: it names Python code, which is never run; if that code is not ViTFor" in out
    assert "  not read of config.json: `label2id`: it is not the reverse of `id2label`" in out
    assert "  not read of config.json: `max_length`, `num_beams`: it is a setting of a search" in out
    out = command("import", str(vit), "--dry-run", "--json").out
    assert sorted(json.loads(out)["ignored_keys"]) == ["auto_map", "label2id", "max_length", "num_beams"]


def test_weights_that_are_not_finite_are_named(vit: Path, command: Callable[..., Done]) -> None:
    path = vit / "model.safetensors"
    tensors = load_file(path)
    tensors["classifier.weight"][0, :2] = torch.nan
    save_file(tensors, path, {"format": "pt"})
    done = command("import", str(vit), "-o", "out")
    assert done.code == 2
    count = tensors["classifier.weight"].numel()
    assert done.err.startswith(f"TFK084 {path}: of the {count:,} numbers of `classifier.weight`, 2 NaN; ")
    assert not Path("out").exists()
    assert command("import", str(vit), "-o", "out", "--allow-nan").code == 0
    assert "TFK084 out/model.safetensors" in command("classify", "out", "x.png").err
    assert "TFK084 out/model.safetensors" in command("export", "out", "--to", "hf", "-o", "hf").err
    assert command("export", "out", "--to", "hf", "-o", "hf", "--allow-nan").code == 0


@pytest.mark.parametrize(
    ("layers", "message"), [(30, "TFK143 .* more tensors do not fit"), (100_000, "TFK045 .*200,000 of them in")]
)
def test_a_configuration_of_more_layers_than_the_files_hold(
    layers: int, message: str, vit: Path, command: Callable[..., Done]
) -> None:
    configure(vit, num_hidden_layers=layers)
    done = command("import", str(vit), "--dry-run")
    assert done.code == 2
    assert re.search(message, done.err)


def test_keys_of_the_preprocessor_that_are_not_read_are_named(vit: Path, command: Callable[..., Done]) -> None:
    written = {
        "image_mean": [0.1] * 2,
        "image_std": [0.2] * 2,
        "do_resize": True,
        "size": {"height": 8},
        "do_center_crop": False,
    }
    (vit / "preprocessor_config.json").write_text(json.dumps(written))
    done = command("import", str(vit), "--dry-run")
    assert done.code == 0
    assert "not read of preprocessor_config.json: `do_resize`, `size`: images are neither resized" in done.out
    assert json.loads(command("import", str(vit), "--dry-run", "--json").out)["ignored_keys"].keys() == {
        "preprocessor_config.json:do_resize", "preprocessor_config.json:size",
    }  # fmt: skip
    (vit / "preprocessor_config.json").write_text(json.dumps({**written, "do_normalize": False}))
    assert command("import", str(vit), "-o", "out").code == 0
    assert json.loads(Path("out/images.json").read_text()) == {"mean": [0.0] * 2, "std": [1.0] * 2}
    for wrong in ({"do_rescale": False}, {"rescale_factor": 1.0}, {"rescale_factor": "x"}):
        (vit / "preprocessor_config.json").write_text(json.dumps({**written, **wrong}))
        done = command("import", str(vit), "--dry-run")
        assert (done.code, "images are not divided by 255" in done.err) == (2, True)
    (vit / "preprocessor_config.json").write_text(json.dumps({**written, "image_std": [0.2] * 3}))
    assert "`image_std` has 3 numbers, and images have 2 channels" in command("import", str(vit), "--dry-run").err


def test_a_tensor_under_its_old_and_its_new_name_is_an_error(vit: Path, command: Callable[..., Done]) -> None:
    tensors = load_file(vit / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layernorm.weight"))
    save_file({**tensors, name.replace("weight", "gamma"): torch.ones_like(tensors[name])}, vit / "model.safetensors")
    done = command("import", str(vit), "--dry-run")
    assert done.code == 2
    assert f"TFK143 the files hold `{name}` under two names, `" in done.err


def test_ends_and_starts_of_the_generation_settings_that_the_model_does_not_have_are_named(
    tmp_path: Path, command: Callable[..., Done]
) -> None:
    make("GPT2LMHeadModel").save_pretrained(tmp_path / "gpt2")
    (tmp_path / "gpt2/generation_config.json").write_text(json.dumps({"eos_token_id": [60, 5], "max_new_tokens": 3}))
    done = command("import", str(tmp_path / "gpt2"), "--dry-run")
    assert "  not read of generation_config.json: `eos_token_id`: the model has that of config.json, 60: a search" in done.out
    (tmp_path / "gpt2/generation_config.json").write_text(json.dumps({"eos_token_id": 60, "max_new_tokens": 3}))
    assert "eos_token_id" not in command("import", str(tmp_path / "gpt2"), "--dry-run").out


def changed(name: str, place: Path, tensors: Callable[[dict[str, Any]], dict[str, Any]] | None = None, **keys: Any) -> Path:
    make(name).save_pretrained(place)
    configure(place, **keys)
    if tensors is not None:
        save_file(tensors(load_file(place / "model.safetensors")), place / "model.safetensors", {"format": "pt"})
    return place


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("LlamaForCausalLM", {"rope_parameters": None, "rope_scaling": "x"}, "`rope_scaling` is `x`; transformers writes"),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "defaults.position.base: "),
        (
            "LlamaForCausalLM", {"num_attention_heads": 0, "head_dim": None},
            "`hidden_size` is `24`, `num_attention_heads` is `0`; transformers writes other numbers",
        ),
        (
            "GPTNeoXForCausalLM", {"rope_parameters": None, "partial_rotary_factor": 1e308},
            "`partial_rotary_factor` is `1e+308`; transformers writes other numbers",
        ),
        (  # transformers reads it in other classes only
            "LlamaForCausalLM", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}},
            "`rope_parameters`: `partial_rotary_factor` is not 1, and models of this class rotate whole heads",
        ),
        (
            "T5ForConditionalGeneration", {"dense_act_fn": "gelu"},
            "`dense_act_fn`, `is_gated_act`, `feed_forward_proj`: `dense_act_fn` is `gelu`, and `feed_forward_proj` is `relu`",
        ),
        (
            "T5ForConditionalGeneration", {"is_gated_act": True},
            "`dense_act_fn`, `is_gated_act`, `feed_forward_proj`: `is_gated_act` is `True`, and `feed_forward_proj` is `relu`",
        ),
        ("LlamaForCausalLM", {"rope_parameters": {"full_attention": 1}}, "`rope_parameters`: `full_attention` is unknown"),
        (
            "LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            "`rope_parameters`, `rope_scaling`: `rope_scaling` is written beside `rope_parameters`",
        ),
        ("BertForMaskedLM", {"hidden_size": 25}, "`num_attention_heads`: `hidden_size` 25 is not divisible by"),
        ("BertForMaskedLM", {"hidden_size": "24"}, '`hidden_size`: a whole number is expected, `"24"` is written'),
        ("BertForMaskedLM", {"hidden_size": None}, "nodes.tokens: `hidden_size` is missing"),
        ("BertForMaskedLM", {"num_hidden_layers": -2}, "`num_hidden_layers`: at least 1 is expected, `-2` is written"),
    ],
)  # fmt: skip
def test_wrong_values_have_the_names_of_the_configuration(
    name: str, keys: dict[str, Any], message: str, tmp_path: Path, command: Callable[..., Done]
) -> None:
    done = command("import", str(changed(name, tmp_path / "hf", **keys)), "--dry-run")
    assert done.code == 2
    assert f"config.json: {message}" in done.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: {f"module.{name}": tensor for name, tensor in tensors.items()},
            "TFK143 {place}: all names begin with `module.`, which a wrapper of training writes; save the tensors without it\n",
        ),
        (
            lambda tensors: {name: tensor.long() for name, tensor in tensors.items()},
            "{place}: `cls.predictions.bias` and 41 more tensors are of int64, and a weight is of bfloat16, ",
        ),
        (
            lambda tensors: {name: tensor.to(torch.float8_e4m3fn) for name, tensor in tensors.items()},
            "is of F8_E4M3, and weights of quantised models are not read; save the model in float32, bfloat16 or float16",
        ),
    ],
    ids=["wrapper", "whole numbers", "quantised"],
)
def test_tensors_of_another_form_are_told(
    change: Callable[[dict[str, Any]], dict[str, Any]], message: str, tmp_path: Path, command: Callable[..., Done]
) -> None:
    place = changed("BertForMaskedLM", tmp_path / "hf", change)
    done = command("import", str(place), "--dry-run")
    assert done.code == 2
    assert message.format(place=place) in done.err


def test_a_problem_that_classify_does_not_have_is_named(tmp_path: Path, command: Callable[..., Done]) -> None:
    place = changed("BertForSequenceClassification", tmp_path / "hf", problem_type="multi_label_classification")
    done = command("import", str(place), "--dry-run")
    assert done.code == 0
    assert "  not read of config.json: `problem_type`: multi_label_classification: tfkit chooses one class" in done.out
    assert "  there is no tokeniser: the model reads ids, and no text\n" in done.out


def test_a_negative_id_is_no_token_and_pairs_are_for_classifiers(tmp_path: Path, command: Callable[..., Done]) -> None:
    place = changed("LlamaForCausalLM", tmp_path / "hf", pad_token_id=-1)
    assert "`pad_token_id`: the vocabulary has no such id: it has 61\n" in command("import", str(place), "--dry-run").out
    done = command("import", str(place), "--dry-run", "--pairs")
    assert done.code == 2
    assert "TFK090 --pairs is for a classifier, and LlamaForCausalLM is none" in done.err


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("pruned_heads", {"0": [1]}, "a spec has as many heads in each layer of a kind"),
        ("quantization_config", {"quant_method": "gptq"}, "the weights of quantised models are not read"),
    ],
)
def test_keys_that_change_the_model_are_refused(
    key: str, value: dict[str, Any], reason: str, vit: Path, command: Callable[..., Done]
) -> None:
    configure(vit, **{key: value})
    done = command("import", str(vit), "--dry-run")
    assert done.code == 2
    assert done.err.startswith(f"TFK142 {vit}/config.json: `{key}` is `")
    assert reason in done.err
    configure(vit, **{key: {}})
    assert command("import", str(vit), "--dry-run").code == 0


def in_shards(place: Path) -> None:
    tensors = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(tensors, "model-00002-of-00002.safetensors")}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))


def moved(name: str) -> Callable[[Path], object]:
    """The weights under another name."""
    return lambda place: (place / "model.safetensors").rename(place / name)


def below(*names: str) -> Callable[[Path], object]:
    """The files of the model in a directory further down."""

    def move(place: Path) -> None:
        files, inner = list(place.iterdir()), place.joinpath(*names)
        inner.mkdir(parents=True)
        for file in files:
            file.rename(inner / file.name)

    return move


def of_an_adapter(place: Path) -> None:
    (place / "config.json").rename(place / "adapter_config.json")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (below("en-de"), "has no config.json; name a directory below it: {place}/en-de\n"),
        (below("snapshots", "f3a1"), "has no config.json; name a directory below it: {place}/snapshots/f3a1\n"),
        (of_an_adapter, "has no config.json; it holds an adapter of peft: merge it into its base model (`merge_and_unload`)"),
        (moved("tf_model.h5"), "; it has tf_model.h5, which is not read; weights are in model.safetensors, or in the files of"),
        (in_shards, "model-00002-of-00002.safetensors, which does not exist; the download is not complete, or mixes"),
        (
            lambda place: configure(place, hidden_size=48),
            "`bert.embeddings.word_embeddings.weight` is (61, 24), and the configuration needs (61, 48), as `hidden_size` is",
        ),
        (lambda place: configure(place, hidden_size=48), " more tensors do not fit\n"),
        (
            lambda place: configure(place, num_hidden_layers=1),
            "and 12 more have no place in BertForMaskedLM with this configuration: is it of another class (--class), or of",
        ),
    ],
    ids=["above", "cache", "adapter", "tensorflow", "shard", "width", "width, folded", "surplus"],
)
def test_what_is_broken_leads_on(
    damage: Callable[[Path], object], message: str, tmp_path: Path, command: Callable[..., Done]
) -> None:
    place = changed("BertForMaskedLM", tmp_path / "hf")
    damage(place)
    done = command("import", str(place), "--dry-run")
    assert done.code == 2
    assert message.format(place=place) in done.err
    assert done.err.count("TFK") <= 9
    assert "`...`" not in done.err
