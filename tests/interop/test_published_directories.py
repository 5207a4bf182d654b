"""Directories as the years 2018 to 2025 published them come in, for every class. transformers judges what they hold."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tfkit
from tfkit import TfkitError
from tfkit.interop.huggingface_import import plan_import, run_import
from tfkit.interop.weight_map import shipped_maps
from tiers import EVERY_CASE

from .models import MODELS, VOCABULARY, make

pytestmark = pytest.mark.slow
Tensors = dict[str, torch.Tensor]
Saved = Callable[[str], tuple[Any, Path, Tensors]]
"""By name, a model of transformers, a directory where it was saved, and the weights of its import."""
Change = Callable[[Any, Tensors, dict[str, Any]], Tensors]
"""From a model of transformers, its tensors and its configuration, which may be changed, to the tensors of a file."""
SURPLUS = {
    "GPT2": {"h.{i}.attn.bias": (1, 1, 8, 8), "h.{i}.attn.masked_bias": ()},
    "GPTJ": {"h.{i}.attn.bias": (1, 1, 8, 8), "h.{i}.attn.masked_bias": ()},
    "GPTNeoX": {
        "layers.{i}.attention.bias": (1, 1, 8, 8),
        "layers.{i}.attention.masked_bias": (),
        "layers.{i}.attention.rotary_emb.inv_freq": (2,),
    },
    **{name: {"layers.{i}.self_attn.rotary_emb.inv_freq": (4,)} for name in ["Llama", "Mistral", "Qwen3", "Olmo2", "Gemma2"]},
    **{
        name: {"embeddings.position_ids": (1, 37)}
        for name in ["Bert", "Roberta", "XLMRoberta", "Camembert", "Albert", "Electra", "DistilBert"]
    },
    "CLIP": {"text_model.embeddings.position_ids": (1, 37), "vision_model.embeddings.position_ids": (1, 17)},
    "Bart": {"encoder.version": (1,), "decoder.version": (1,)},
    "MBart": {"encoder.version": (1,), "decoder.version": (1,)},
    **{name: {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": (32, 3)} for name in ["T5", "MT5"]},
    "M2M100": {"encoder.embed_positions.weights": (39, 24), "decoder.embed_positions.weights": (39, 24)},
}
"""By family, buffers of earlier releases, without the prefix of the base model, and their shapes."""


def prefix_of(model: Any, tensors: Tensors) -> str:
    """The prefix of the base model, if these names have it."""
    prefix = f"{model.base_model_prefix}."
    return prefix if any(name.startswith(prefix) for name in tensors) else ""


def with_buffers(model: Any, tensors: Tensors, config: dict[str, Any]) -> Tensors:
    family = type(model.config).__name__.removesuffix("Config")
    prefix = prefix_of(model, tensors)
    buffers = {
        prefix + name.replace("{i}", str(number)): torch.ones(shape)
        for name, shape in SURPLUS.get(family, {}).items()
        for number in (range(2) if "{i}" in name else [0])
    }
    return {**buffers, **tensors}


def with_parts_of_other_classes(model: Any, tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """The file of a model with all heads: the names of its body have the prefix of the base model."""
    family, body = type(model.config).__name__.removesuffix("Config"), f"{model.base_model_prefix}."
    siblings = [name for name, (of, _) in MODELS.items() if of == family and hasattr(transformers, name)]
    if len(siblings) == 1:
        return tensors
    whole = tensors if prefix_of(model, tensors) else {body + name: tensor for name, tensor in tensors.items()}
    for name in siblings:
        sibling = getattr(transformers, name)(model.config)
        theirs = written(sibling)
        prefix = "" if prefix_of(sibling, theirs) else body
        for key, tensor in theirs.items():
            whole.setdefault(prefix + key, tensor)
    return whole


def written(model: Any) -> Tensors:
    """The tensors of a model as transformers writes them."""
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        return load_file(Path(directory) / "model.safetensors")


def with_old_names_of_norms(model: Any, tensors: Tensors, config: dict[str, Any]) -> Tensors:
    old = {"weight": "gamma", "bias": "beta"}

    def renamed(name: str) -> str:
        module, _, leaf = name.rpartition(".")
        return f"{module}.{old[leaf]}" if module.endswith("LayerNorm") else name

    return {renamed(name): tensor for name, tensor in tensors.items()}


def with_tied_tensors_twice(model: Any, tensors: Tensors, config: dict[str, Any]) -> Tensors:
    if config.get("tie_word_embeddings", True):
        for name, owner in (model._tied_weights_keys or {}).items():
            if owner in tensors:
                tensors.setdefault(name, tensors[owner].clone())
    return tensors


def with_ids_beyond_the_vocabulary(model: Any, tensors: Tensors, config: dict[str, Any]) -> Tensors:
    for key in ("bos_token_id", "eos_token_id"):
        if key in config:
            config[key] = VOCABULARY + 900
    return tensors


def with_several_ends(model: Any, tensors: Tensors, config: dict[str, Any]) -> Tensors:
    if isinstance(config.get("eos_token_id"), int):
        config["eos_token_id"] = [config["eos_token_id"], 5]
    return tensors


def with_no_class(model: Any, tensors: Tensors, config: dict[str, Any]) -> Tensors:
    del config["architectures"]
    return tensors


def with_no_class_and_no_type(model: Any, tensors: Tensors, config: dict[str, Any]) -> Tensors:
    del config["architectures"], config["model_type"]
    return tensors


def with_old_keys(model: Any, tensors: Tensors, config: dict[str, Any]) -> Tensors:
    if "scale_decoder_outputs" in config:  # T5 of transformers before 5 said it with the other key
        config["tie_word_embeddings"] = config.pop("scale_decoder_outputs")
    config |= {
        "torchscript": False, "use_bfloat16": False, "output_past": True, "pruned_heads": {}, "finetuning_task": None,
        "num_beams": 1, "top_k": 50, "length_penalty": 1.0, "task_specific_params": None, "gradient_checkpointing": False,
    }  # fmt: skip
    return tensors


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        with_buffers, with_parts_of_other_classes, with_old_names_of_norms, with_tied_tensors_twice,
        with_ids_beyond_the_vocabulary, with_several_ends, with_no_class, with_no_class_and_no_type, with_old_keys,
    )
}  # fmt: skip
TOGETHER = [
    ("with_buffers", "with_ids_beyond_the_vocabulary"), ("with_parts_of_other_classes", "with_several_ends"),
    ("with_old_names_of_norms", "with_old_keys"), ("with_tied_tensors_twice", "with_no_class"), ("with_no_class_and_no_type",),
]  # fmt: skip
"""A change of the tensors and one of the configuration, as a directory may have both."""
SAME_NAMES = (
    "BertModel RobertaModel RobertaForMaskedLM XLMRobertaForMaskedLM CamembertForMaskedLM RobertaForSequenceClassification "
    "XLMRobertaForSequenceClassification LlamaForCausalLM MistralForCausalLM T5ForConditionalGeneration "
    "M2M100ForConditionalGeneration"
)
AMBIGUOUS = {"with_no_class_and_no_type": {*SAME_NAMES.split(), "MT5ForConditionalGeneration", "T5 1.1", "mT5 with a head"}}
"""The classes that another class shares all names and shapes with."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, catalogue: Any) -> Saved:
    models: dict[str, tuple[Any, Path, Tensors]] = {}

    def get(name: str) -> tuple[Any, Path, Tensors]:
        if name not in models:
            model = make(name)
            directory = tmp_path_factory.mktemp("published") / "hf"
            model.save_pretrained(directory)
            models[name] = model, directory, weights(directory, catalogue, directory.parent / "model")
        return models[name]

    return get


def weights(directory: Path, catalogue: Any, output: Path, **options: Any) -> Tensors:
    plan = plan_import(directory, catalogue, **options)
    assert not plan.unknown
    return tfkit.load(run_import(plan, output, catalogue), catalogue=catalogue).state_dict()


EACH = [pytest.param(name, marks=pytest.mark.xdist_group(f"published-{name}")) for name in MODELS]  # saved by one worker


@pytest.mark.parametrize("changes", [(name,) for name in CHANGES] if EVERY_CASE else TOGETHER, ids=" ".join)
@pytest.mark.parametrize("name", EACH)
def test_a_published_directory_has_the_weights_of_todays(name, changes, saved, tmp_path, catalogue):
    model, today, expected = saved(name)
    published = Path(shutil.copytree(today, tmp_path / "published"))
    config = json.loads((today / "config.json").read_text())
    tensors = load_file(today / "model.safetensors")
    for change in changes:
        tensors = CHANGES[change](model, tensors, config)
    save_file(tensors, published / "model.safetensors", {"format": "pt"})
    (published / "config.json").write_text(json.dumps(config))
    theirs, told = type(model).from_pretrained(published, output_loading_info=True)
    assert not (told["missing_keys"] | told["mismatched_keys"])
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in theirs.state_dict().items())
    chosen = type(model).__name__ if any(name in AMBIGUOUS.get(change, ()) for change in changes) else None
    if chosen:
        with pytest.raises(TfkitError, match=f"TFK141 .*`architectures`, and the tensors fit [2-9] classes: .*{chosen}"):
            plan_import(published, catalogue)
    found = weights(published, catalogue, tmp_path / "b", architecture=chosen)
    more = {key for key in found if key not in expected}  # T5: a head in the file may differ from the table
    assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())
    assert not more or (more == {"nodes.logits.logits.weight"} and "lm_head.weight" in tensors)


@pytest.mark.parametrize("name", EACH)
def test_dtypes_of_several_kinds_become_the_widest(name, saved, tmp_path, catalogue):
    _, today, _ = saved(name)
    published = Path(shutil.copytree(today, tmp_path / "published"))
    tensors = load_file(today / "model.safetensors")
    tables = "embed_positions.weight"  # must be those of the configuration
    half = {key: tensor.half() if tensor.dim() > 1 and not key.endswith(tables) else tensor for key, tensor in tensors.items()}
    save_file(half, published / "model.safetensors", {"format": "pt"})
    rounded = Path(shutil.copytree(today, tmp_path / "rounded"))
    save_file({key: tensor.float() for key, tensor in half.items()}, rounded / "model.safetensors", {"format": "pt"})
    expected = weights(rounded, catalogue, tmp_path / "a")
    found = weights(published, catalogue, tmp_path / "b")
    assert all(torch.equal(tensor, expected[key]) for key, tensor in found.items())


@pytest.mark.parametrize("name", sorted({name for name in MODELS if hasattr(transformers, name)}))
def test_what_transformers_expects_beside_the_weights_is_among_them(name):
    """But for the mask of a GPT-2 that attends to an encoder, which no spec of the map is."""
    family = getattr(transformers, name).config_class.__name__.removesuffix("Config")
    for pattern in set(getattr(transformers, name)._keys_to_ignore_on_load_unexpected or ()) - {"crossattention.bias"}:
        assert any(re.search(pattern, surplus) for surplus in SURPLUS[family]), pattern


def test_every_class_is_covered(catalogue):
    known = {name for one in shipped_maps(catalogue).values() for name in one.architectures} - {"OPTForCausalLM"}
    assert known <= {*MODELS}
