"""Mistakes in weight maps, each seeded and each seen: by a check of the import, or by numbers that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tfkit
from parity.comparison import all_in_float64
from tfkit import TfkitError
from tfkit.interop import huggingface_match
from tfkit.interop.huggingface_import import plan_import, run_import
from tfkit.interop.weight_map import read_map, shipped_maps

from .models import make

Change = Callable[[str], str]


def swapped(one: str, other: str) -> Change:
    return lambda text: text.replace(one, "@@").replace(other, one).replace("@@", other)


def replaced(one: str, other: str) -> Change:
    return lambda text: text.replace(one, other)


QKV = "[branches.self_attention.query, branches.self_attention.key, branches.self_attention.value]"
KQV = "[branches.self_attention.key, branches.self_attention.query, branches.self_attention.value]"
FAULTS: dict[str, tuple[str, Change]] = {
    "queries and keys swapped": ("BertForMaskedLM", swapped("attention.self.query:", "attention.self.key:")),
    "parts of a fused projection swapped": ("GPT2LMHeadModel", replaced(QKV, KQV)),
    "a square matrix not transposed": (
        "GPT2LMHeadModel",
        replaced("{of: branches.self_attention.output, view: [transpose]}", "branches.self_attention.output"),
    ),
    "a matrix not transposed": (
        "GPT2LMHeadModel",
        replaced("{of: branches.ffn.input, view: [transpose]}", "branches.ffn.input"),
    ),
    "heads stored one after the other": ("GPTNeoXForCausalLM", replaced("[stack_per_head: num_attention_heads]", "[concat]")),
    "rotary of neighbours": ("GPTNeoXForCausalLM", replaced("$=position", "{kind: rotary_interleaved, dims: 4}")),
    "rotary of halves": ("GPTJForCausalLM", replaced("rotary_interleaved", "rotary_half")),
    "keys permuted with the heads of queries": (
        "LlamaForCausalLM",
        replaced(
            "self_attn.k_proj: branches.self_attention.key",
            "self_attn.k_proj: {of: branches.self_attention.key, view: [permute_rotary: num_attention_heads]}",
        ),
    ),
    "positions without their offset": (
        "RobertaForMaskedLM",
        replaced("$=position", "{kind: learned, max_len: $max_position_embeddings}"),
    ),
    "positions from the wrong row": (
        "BartForConditionalGeneration",
        replaced("{kind: learned, max_len: $max_position_embeddings, offset: 2}", "{kind: learned, max_len: 39}"),
    ),
    "an untied head dropped": (
        "LlamaForCausalLM",
        replaced("weights: {lm_head.weight: nodes.logits.logits.weight}", "weights: {}"),
    ),
    "norms without 1 +": ("Gemma2ForCausalLM", replaced("unit_offset: true", "unit_offset: false")),
    "gate and input swapped": ("LlamaForCausalLM", swapped("mlp.gate_proj:", "mlp.up_proj:")),
    "norms of two sub-layers swapped": ("OLMo", swapped("post_attention_layernorm:", "post_feedforward_layernorm:")),
    "another activation": ("MarianMTModel", replaced("activation: $activation_function", "activation: relu")),
    "no scale of embeddings": ("MarianMTModel", replaced("scale: $scale_embedding", "scale: 1.0")),
    "one window too long": ("MistralForCausalLM", replaced("window: $sliding_window", "window: 8")),
}
MODELS = {"OLMo": "Olmo2ForCausalLM"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory, catalogue) -> Any:
    made: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in made:
            directory = tmp_path_factory.mktemp(name)
            with all_in_float64():
                model = make(name)
            model.save_pretrained(directory / "hf")
            made[name] = model, directory / "hf"
        return made[name]

    return get


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault, saved, tmp_path, catalogue, monkeypatch):
    name, change = FAULTS[fault]
    theirs, directory = saved(MODELS.get(name, name))
    maps = shipped_maps(catalogue)
    right = plan_import(directory, catalogue).match.map_file
    wrong = read_map(right.name, lambda name: change(_source(name)))
    assert wrong != right
    monkeypatch.setattr(huggingface_match, "shipped_maps", lambda catalogue: {**maps, right.name: wrong})
    try:
        model = tfkit.load(run_import(plan_import(directory, catalogue), tmp_path / "model", catalogue), catalogue=catalogue)
    except TfkitError:
        return
    ids = torch.randint(4, 57, (2, 17), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), all_in_float64():
        if "source" in model.spec.nodes:
            made = model.eval()(source=ids, target=ids[:, :9])
            reference = theirs(ids, decoder_input_ids=ids[:, :9])
        else:
            made, reference = model.eval()(tokens=ids), theirs(ids)
    (output,) = made.values()
    assert (output - reference.logits).abs().max() > 1e-6 * reference.logits.abs().max()


def _source(name: str) -> str:
    from importlib.resources import files

    return files("tfkit.interop").joinpath(f"maps/{name}.yaml").read_text()
