"""Models of transformers come in with the same numbers, and go out again with the same bytes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tfkit
from parity.comparison import all_in_float64
from tfkit.interop.config_template import config_of, configuration
from tfkit.interop.huggingface import find_target, write
from tfkit.interop.huggingface_directory import HuggingFaceDirectory
from tfkit.interop.huggingface_import import ImportPlan, plan_import, run_import
from tfkit.interop.views import Array
from tfkit.interop.weight_map import rules_of, shipped_maps
from tfkit.io.saved_files import other_files

from .models import MODELS, VOCABULARY, make

ENCODER_DECODERS = ("T5", "MT5", "Bart", "MBart", "Marian", "Pegasus", "M2M100")
OUTPUTS = {
    "encoder": "last_hidden_state",
    "pooled": "pooler_output",
    "next": "seq_relationship_logits",
    "match": "logits_per_text",
    "words": "logits",
    "label": "logits",
    "logits": "logits",
    "replaced": "logits",
    "answer": "start_logits",
}
"""Our names of their outputs."""


def imported(theirs: Any, directory: Path, catalogue: Any, name: str = "hf") -> tuple[ImportPlan, Any]:
    theirs.save_pretrained(directory / name)
    plan = plan_import(directory / name, catalogue)
    return plan, tfkit.load(run_import(plan, directory / f"{name}-model", catalogue), catalogue=catalogue).eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_files_go_out_as_they_came_in(name, tmp_path, catalogue):
    plan, model = imported(make(name), tmp_path, catalogue)
    assert not plan.unknown
    (tmp_path / "out").mkdir()
    write(model, other_files(tmp_path / "hf-model"), tmp_path / "out")
    for file in (tmp_path / "hf").iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name
    again = plan_import(tmp_path / "out", catalogue)
    second = tfkit.load(run_import(again, tmp_path / "again", catalogue), catalogue=catalogue)
    assert all(
        torch.equal(one, other) for one, other in zip(model.state_dict().values(), second.state_dict().values(), strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_spec_gives_its_configuration_without_the_original(name, tmp_path, catalogue):
    theirs = make(name)
    theirs.config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    written["architectures"] = [type(theirs).__name__]
    maps = shipped_maps(catalogue)
    map_file = next(each for each in maps.values() if written["model_type"] in each.model_types)
    from tfkit.interop.config_template import spec_of

    spec = spec_of(map_file, type(theirs).__name__, written, catalogue, "config.json")
    config, reasons = config_of(map_file, type(theirs).__name__, spec, catalogue)
    assert not reasons
    # Sizes of tables that a spec computes, and of a pooler that the class does not have.
    unsaid = {"max_position_embeddings", "max_source_positions", "pooler_output_size"}
    before, after = configuration(map_file, written), configuration(map_file, config)
    different = {key for key in before if before[key] != after[key] and key not in unsaid}
    assert different <= {"activation_function"}  # swish and silu are one
    assert not find_target(spec, {}, catalogue).reasons


def test_no_class_has_a_llama_that_rotates_a_part_of_each_head(catalogue):
    small = ["expect=null", "defaults.d_model=24", "defaults.attention={num_heads: 4, num_kv_heads: 2}", "body.num_layers=1"]
    spec = tfkit.load_spec("llama3-8b", catalogue, small)
    assert not find_target(spec, {}, catalogue).reasons
    part = tfkit.load_spec("llama3-8b", catalogue, [*small, "body.position={kind: rotary_half, dims: 4}"])
    assert find_target(part, {}, catalogue).reasons


def inputs_of(name: str, model: Any) -> tuple[dict[str, Any], dict[str, Any], torch.Tensor | None]:
    """Arguments of our model, of theirs, and which outputs are not padding."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 57, (3, 17), generator=generator)
    lengths = torch.tensor([17, 5, 11])
    real = torch.arange(17) < lengths[:, None]
    family = MODELS[name][0]
    image = torch.randn(3, 2, 28, 28, generator=generator)
    if family in ("ViT", "DeiT"):
        return {"image": image}, {"pixel_values": image}, None
    if family == "CLIP":
        ids[torch.arange(3), lengths - 1] = VOCABULARY - 1
        theirs = {"input_ids": ids, "attention_mask": real.long(), "pixel_values": image}
        return {"text": ids, "image": image, "lengths": {"text": lengths}}, theirs, None
    if family == "Whisper":
        frames = torch.randn(3, 30, 10, generator=generator)
        return {"audio": frames, "target": ids}, {"input_features": frames.mT, "decoder_input_ids": ids}, None
    if family in ENCODER_DECODERS:
        pad = model.config.pad_token_id
        source, target = ids.where(real, pad), torch.randint(4, 57, (3, 13), generator=generator)
        theirs = {"input_ids": source, "attention_mask": real.long(), "decoder_input_ids": target}
        return {"source": source, "target": target}, theirs, None
    pad = model.config.pad_token_id
    ids = ids.where(real, pad)
    return {"tokens": ids, "lengths": {"tokens": lengths}}, {"input_ids": ids, "attention_mask": real.long()}, real


def compared(name: str, found: str, ours: Any, theirs: Any, real: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """One output of both, without padding."""
    key = "prediction_logits" if name == "BertForPreTraining" and found == "words" else OUTPUTS[found]
    ends = found == "answer"
    one, other = ours[found], torch.stack([theirs["start_logits"], theirs["end_logits"]], -1) if ends else theirs[key]
    one = one.squeeze(-1) if name == "ElectraForPreTraining" else one
    if real is not None and one.shape[:2] == real.shape:
        one, other = one[real], other[real]
    return one, other


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_tied_and_ignored_tensors_and_tables_with_other_last_bits_go_out_as_they_came_in(name, tmp_path, catalogue):
    theirs = make(name)
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    map_file = plan_import(tmp_path, catalogue).match.map_file
    tied = {other: tensors[owner].clone() for other, owner in map_file.absent.items() if owner in tensors}
    prefix = map_file.architectures[type(theirs).__name__].prefix
    ignored = {other.replace("{i}", "1"): torch.arange(3) for other in map_file.ignored if other.startswith(prefix)}
    for table in {*map_file.constants} & {*tensors}:
        tensors[table] = torch.nextafter(tensors[table], torch.ones(()))
    save_file({**ignored, **tied, **tensors}, tmp_path / "model.safetensors", {"format": "pt"})
    plan = plan_import(tmp_path, catalogue)
    assert set(plan.match.ignored) >= set(ignored)
    assert set(plan.match.tied) | {rule.theirs for rule in plan.match.rules} >= set(tied)
    model = tfkit.load(run_import(plan, tmp_path / "model", catalogue), catalogue=catalogue)
    (tmp_path / "out").mkdir()
    write(model, other_files(tmp_path / "model"), tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_a_buffer_that_holds_infinities_is_left_out_and_the_model_goes_out(tmp_path, catalogue):
    make("GPT2LMHeadModel").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    buffer = {"transformer.h.0.attn.bias": torch.full((1, 1, 4, 4), -torch.inf).triu(1)}
    save_file({**tensors, **buffer}, tmp_path / "model.safetensors", {"format": "pt"})
    model = tfkit.load(run_import(plan_import(tmp_path, catalogue), tmp_path / "model", catalogue), catalogue=catalogue)
    (tmp_path / "out").mkdir()
    write(model, other_files(tmp_path / "model"), tmp_path / "out")
    assert load_file(tmp_path / "out/model.safetensors").keys() == tensors.keys()


def test_owners_of_tied_tensors_are_in_some_file(catalogue):
    """So that the test above meets every line of every map."""
    for map_file in shipped_maps(catalogue).values():
        rules = [rule.theirs for each in map_file.architectures.values() for rule in rules_of(each.weights)]
        for each in map_file.architectures.values():
            rules += [rule.theirs for rule in rules_of(map_file.weights, each.prefix)]
        assert all(owner in rules or owner.rpartition(".")[0] in rules for owner in map_file.absent.values()), map_file.name


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_are_those_of_transformers(name, tmp_path, catalogue):
    with all_in_float64():
        theirs = make(name)
    plan, ours = imported(theirs, tmp_path, catalogue)
    assert plan.dtype == "float64"
    mine, yours, real = inputs_of(name, theirs)
    with all_in_float64():
        yours = {key: value.double() if value.is_floating_point() else value for key, value in yours.items()}
        mine = {
            key: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
            for key, value in mine.items()
        }
        reference = theirs(**yours)
        made = ours(**mine)
        pairs = [compared(name, found, made, reference, real) for found in ours.spec.outputs if found in OUTPUTS]
        weights = [torch.randn(one.shape, generator=torch.Generator().manual_seed(2)) for one, _ in pairs]
        sum((one * weight).sum() for (one, _), weight in zip(pairs, weights, strict=True)).backward()
        sum((other * weight).sum() for (_, other), weight in zip(pairs, weights, strict=True)).backward()
    for one, other in pairs:
        assert (one - other).abs().max() <= 1e-12 * other.abs().max()
    gradients = copy.deepcopy(theirs)
    before = dict(theirs.named_parameters())
    with torch.no_grad():
        for key, parameter in gradients.named_parameters():
            gradient = before[key].grad
            parameter.copy_(torch.zeros_like(parameter) if gradient is None else gradient)
    gradients.save_pretrained(tmp_path / "gradients")
    saved = HuggingFaceDirectory(tmp_path / "gradients")
    own = dict(ours.named_parameters())
    largest = max(float(parameter.grad.abs().max()) for parameter in own.values() if parameter.grad is not None)
    for rule in plan.match.rules:
        stored: list[Array] = rule.load(saved.read(plan.match.spelling[rule.theirs]).view("float64"))
        for key, array in zip(rule.ours, stored, strict=True):
            if key in own and own[key].requires_grad and own[key].grad is not None and not unlearnt(key, theirs):
                difference = (own[key].grad - torch.from_numpy(array.copy())).abs().max()
                assert difference <= 1e-11 * largest, key


def unlearnt(key: str, theirs: Any) -> bool:
    """The table with the padding row that only transformers keeps out of training."""
    return key.endswith("embedding.weight") and getattr(theirs.config, "pad_token_id", None) is not None


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex"])
@pytest.mark.parametrize("name", ["MarianMTModel", "T5ForConditionalGeneration", "GPT2LMHeadModel"])
def test_generated_ids_are_those_of_transformers(name, backend, tmp_path, catalogue):
    theirs = make(name)
    _, model = imported(theirs, tmp_path, catalogue)
    model.set_backend(backend)
    mine, yours, _ = inputs_of(name, theirs)
    rules = {"do_sample": False, "max_new_tokens": 9, "forced_eos_token_id": None, "num_beams": 1, "use_cache": False}
    if name == "GPT2LMHeadModel":
        prompt = mine["tokens"][:, :5]
        made = tfkit.greedy(model, prompt=prompt, max_new_tokens=9).ids
        other = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **rules)[:, 5:]
    else:
        yours.pop("decoder_input_ids")
        made = tfkit.greedy(model, source=mine["source"], max_new_tokens=9).ids
        other = theirs.generate(**yours, **rules)[:, 1:]
    assert made.tolist() == other.tolist()


def test_defaults_of_maps_are_those_of_transformers(catalogue):
    from transformers import AutoConfig

    """A default of null stands for a value that transformers computes."""
    for name, each in shipped_maps(catalogue).items():
        config = AutoConfig.for_model(each.model_types[0]).to_dict()
        theirs = configuration(each, config)
        for key, default in each.config.items():
            if default is not None and key not in ("decoder_start_token_id", "global_attn_every_n_layers"):
                assert theirs[key] == default, (name, key)
        assert all(config[key] == only for key, only in each.only.items() if key in config)
