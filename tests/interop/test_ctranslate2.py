"""CTranslate2 computes what tfkit computes: token ids of greedy and beam search, and log-probabilities."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import tfkit
from tfkit.interop.ctranslate2.model_files import Vocabulary

from .engine import (
    ENCODER,
    LANGUAGE,
    NODES,
    built,
    errors_of_log_probabilities,
    exported,
    numbers,
    open_engine,
    words,
)

pytestmark = pytest.mark.usefixtures("one_thread")

ROTARY, T5, SHAW = (
    "defaults.position=rotary_half",
    "defaults.position={kind: relative_t5, buckets: 8, max_distance: 9}",
    "defaults.position={kind: relative_shaw, max_distance: 3}",
)
ALIBI, WINDOW = ("decoder.position=alibi", "target.position=none"), "decoder.self_attention.window=3"
COMBINATIONS = {
    "post": [],
    "pre": ["defaults.placement=pre"],
    "sandwich": ["defaults.placement=sandwich"],
    "no final norm": ["defaults.placement=pre", "encoder.final_norm=none", "decoder.final_norm=none"],
    "post with final norm": ["encoder.final_norm=layer_norm", "decoder.final_norm={kind: rms_norm, eps: 1.0e-5}"],
    "embedding norm": ["source.embedding_norm=layer_norm", "target.embedding_norm=layer_norm"],
    "norm without bias": ["defaults.norm={kind: layer_norm, bias: false}"],
    "norm without weights": ["defaults.norm={kind: layer_norm, affine: false, eps: 1.0e-3}"],
    "RMS": ["defaults.norm=rms_norm"],
    "RMS with offset": ["defaults.norm={kind: rms_norm, unit_offset: true}", "defaults.placement=pre"],
    **{f"activation {name}": [f"defaults.ffn.activation={name}"] for name in (
        "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh", "glu", "reglu", "geglu", "geglu_tanh", "swiglu")},
    "learned": ["defaults.position={kind: learned, max_len: 64, offset: 2}"],
    "halves": ["defaults.position={kind: sinusoidal_halves, last_frequency: inclusive, count: visible}"],
    "no position": ["defaults.position=none"],
    "rotary half": [ROTARY],
    "rotary interleaved": ["defaults.position=rotary_interleaved"],
    "rotary, some features": ["defaults.position={kind: rotary_half, dims: 4, base: 100.0}"],
    "rotary linear": ["defaults.position={kind: rotary_half, scaling: {kind: linear, factor: 3.0}}"],
    "rotary ntk": ["defaults.position={kind: rotary_half, scaling: {kind: ntk, factor: 3.0}}"],
    "rotary llama3": ["defaults.position={kind: rotary_half, scaling: {kind: llama3, factor: 3.0, trained_len: 8}}"],
    "ALiBi": [*ALIBI],
    "ALiBi, 6 heads": [*ALIBI, "defaults.attention={num_heads: 6}"],
    "Shaw": [SHAW],
    "Shaw, one table": ["defaults.position={kind: relative_shaw, max_distance: 3, tables: stack}"],
    "T5": [T5],
    "T5, the shipped sizes": ["defaults.position=relative_t5"],
    "window": [WINDOW],
    "window and rotary": [WINDOW, ROTARY],
    "window and T5": ["decoder.self_attention.window=[2, 0]", T5],
    "window and Shaw": [WINDOW, SHAW],
    "window and ALiBi": [WINDOW, *ALIBI],
    "grouped queries": ["defaults.attention={num_heads: 4, num_kv_heads: 2}"],
    "one key head": ["defaults.attention={num_heads: 4, num_kv_heads: 1}"],
    "grouped queries and Shaw": ["defaults.attention={num_heads: 4, num_kv_heads: 2}", SHAW],
    "narrow heads": ["defaults.attention={num_heads: 3, head_dim: 10, num_kv_heads: 1, scale: 0.7}"],
    "query and key norm": [
        "encoder.self_attention.query_key_norm=rms_norm", "decoder.self_attention.query_key_norm=layer_norm", ROTARY],
    "biases": [
        "defaults.attention={num_heads: 4, bias: {key: false}}", "defaults.ffn={d_ff: 28, activation: relu, bias: false}"],
    "two tables": [
        "target.share=null", "logits.share=null", "target.vocab_size=33", "logits.vocab_size=33", "logits.bias=true"],
    "softcap": ["logits.softcap=5.0", "logits.bias=frozen"],
    "shared layers": ["encoder.layers=[{repeat: 3, shared: true}]"],
    "depths": ["encoder.num_layers=3", "decoder.num_layers=1"],
    "T5 v1.1": [
        "defaults.attention={num_heads: 3, head_dim: 10, scale: 1.0, bias: false}", T5, "defaults.norm=rms_norm",
        "defaults.ffn={d_ff: 28, activation: geglu_tanh, bias: false}", "defaults.placement=pre", "source.scale=1.0",
        "target.scale=1.0", "logits.scale=inverse_sqrt_d_model", "target.start_id=0"],
    "all of them": [
        "defaults.attention={num_heads: 4, num_kv_heads: 2, bias: false}", ROTARY, "defaults.norm=rms_norm",
        "encoder.self_attention.query_key_norm=rms_norm", "decoder.self_attention.query_key_norm=rms_norm",
        "defaults.placement=sandwich", "defaults.ffn={d_ff: 28, activation: swiglu, bias: false}"],
}  # fmt: skip
SOURCES = [[3 + (7 * row + 5 * at * at) % 30 for at in range(length)] for row, length in enumerate((9, 3, 14, 1, 6))]
LIMIT = 16


@pytest.mark.parametrize("name", COMBINATIONS)
def test_an_encoder_decoder_gives_equal_ids(name, catalogue, tmp_path):
    model = built(catalogue, NODES, COMBINATIONS[name])
    translator = open_engine("Translator", exported(model, tmp_path))
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor([*source, 2]) for source in SOURCES], batch_first=True)
    greedy = tfkit.greedy(model, source=ids, max_new_tokens=LIMIT)
    penalty = tfkit.PowerLengthPenalty(1.0)
    rules = {"length_penalty": penalty, "max_new_tokens": LIMIT, "unfinished": "ranked"}
    beams = tfkit.beam_search(model, source=ids, beams=5, **rules)
    ours = {
        1: [row[:length] for row, length in zip(greedy.ids.tolist(), greedy.lengths.tolist(), strict=True)],
        5: [found[0].ids.tolist() for found in beams],
    }
    for size, mine in ours.items():
        # tfkit searches until no hypothesis can overtake the best one. The engine does so with a large `patience`.
        found = translator.translate_batch(
            list(map(words, SOURCES)), beam_size=size, patience=20 if size > 1 else 1, length_penalty=1.0,
            max_decoding_length=LIMIT, min_decoding_length=0, return_end_token=True,
        )  # fmt: skip
        assert [numbers(each.hypotheses[0]) for each in found] == mine
    if "window" not in name:  # the engine's window is that of its cache, which scoring a whole target does not use
        theirs, own = errors_of_log_probabilities(model, translator, SOURCES[2], SOURCES[0])
        assert theirs <= 4 * own + 1e-5


LANGUAGE_MODELS = {
    "GPT-2": ["defaults.position={kind: learned, max_len: 64}", "defaults.placement=pre"],
    "GPT-J": ["defaults.placement=parallel", "defaults.position={kind: rotary_interleaved, dims: 4}"],
    "GPT-NeoX": ["defaults.placement={kind: parallel, norms: separate}", ROTARY],
    "Llama": [ROTARY, "defaults.norm=rms_norm", "defaults.ffn.activation=swiglu", "defaults.placement=pre",
              "defaults.attention={num_heads: 4, num_kv_heads: 2, bias: false}"],
    "Gemma": [ROTARY, "defaults.placement=sandwich", "logits.softcap=30.0", "tokens.scale=sqrt_d_model",
              "defaults.norm={kind: rms_norm, unit_offset: true}"],
    "ALiBi": ["body.position=alibi", "tokens.position=none"],
    "Shaw": [SHAW],
}  # fmt: skip


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_model_gives_equal_ids(name, catalogue, tmp_path):
    model = built(catalogue, LANGUAGE, LANGUAGE_MODELS[name])
    generator = open_engine("Generator", exported(model, tmp_path))
    prompts = [[1, *source] for source in SOURCES]
    ours = [tfkit.greedy(model, torch.tensor([prompt]), max_new_tokens=LIMIT).ids[0].tolist() for prompt in prompts]
    found = generator.generate_batch(
        list(map(words, prompts)), max_length=LIMIT, include_prompt_in_result=False, return_end_token=True
    )
    assert [numbers(each.sequences[0]) for each in found] == ours


def test_an_encoder_gives_equal_vectors(catalogue, tmp_path):
    changes = ["defaults.position={kind: learned, max_len: 64}", "defaults.norm={kind: layer_norm, eps: 1.0e-12}"]
    model = built(catalogue, ENCODER, changes)
    encoder = open_engine("Encoder", exported(model, tmp_path))
    ids, segments = [SOURCES[0], SOURCES[1]], [[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 1]]
    found = encoder.forward_batch(ids, token_type_ids=segments)
    padded = [torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True) for rows in (ids, segments)]
    with torch.no_grad():
        ours = model(tokens=padded[0], segments={"tokens": padded[1]})
    hidden = torch.tensor(np.array(found.last_hidden_state))
    assert (
        max((hidden[row, : len(each)] - ours["encoder"][row, : len(each)]).abs().max() for row, each in enumerate(ids)) < 1e-5
    )
    assert (torch.tensor(np.array(found.pooler_output)) - ours["pooled"]).abs().max() < 1e-5


@pytest.mark.parametrize("quantization", ["int8", "int8_float32"])
def test_int8_runs_and_leaves_the_model_unchanged(quantization, catalogue, tmp_path):
    model = built(catalogue)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sizes = {}
    for kind in ("float32", quantization):
        (tmp_path / kind).mkdir()
        exported(model, tmp_path / kind, quantization=kind)
        sizes[kind] = (tmp_path / kind / "model.bin").stat().st_size
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert sizes[quantization] < sizes["float32"]
    translator = open_engine("Translator", tmp_path / quantization, quantization)
    theirs, _ = errors_of_log_probabilities(model, translator, SOURCES[2], SOURCES[0])
    assert 1e-4 < theirs < 1.0


def test_the_vocabularies_and_special_tokens_are_those_of_the_tokenisers(catalogue, tmp_path):
    model = built(catalogue, NODES, COMBINATIONS["two tables"])
    piece = {"source": "s", "target": "t"}
    specials = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    texts = {
        f"{side}.json": json.dumps(
            {"model": {"vocab": specials | {f"{letter}{n}": n for n in range(4, 30)}, "unk_token": "<unk>"}}
        )
        for side, letter in piece.items()
    }
    exported(model, tmp_path, texts)
    vocabularies = {side: json.loads((tmp_path / f"{side}_vocabulary.json").read_text()) for side in piece}
    assert {side: len(found) for side, found in vocabularies.items()} == {"source": 40, "target": 33}
    assert vocabularies["target"][28:32] == ["t28", "t29", "<30>", "<31>"]
    config = json.loads((tmp_path / "config.json").read_text())
    assert {name: config[name] for name in ("decoder_start_token", "eos_token", "unk_token", "add_source_eos")} == {
        "decoder_start_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_source_eos": True,
    }  # fmt: skip
    assert {name: (tmp_path / name).read_text() for name in texts} == texts


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": {"vocab": 3}}', '{"model": {"vocab": [[1, 2]]}}', "[" * 999])
def test_a_file_that_is_no_tokeniser_is_refused(text, catalogue, tmp_path):
    with pytest.raises(tfkit.InputError, match=r"TFK104 tokeniser\.json holds no tokeniser"):
        exported(built(catalogue), tmp_path, {"tokeniser.json": text})


def test_pieces_that_occur_twice_get_a_name_of_their_own():
    texts = {"tokeniser.json": json.dumps({"model": {"vocab": [["a", 0.0], ["<3>", 0.0], ["a", 0.0]], "unk_id": 0}})}
    vocabulary = Vocabulary(texts, "source")
    assert vocabulary.tokens(4) == ["a", "<3>", "<2>", "<<3>>"]
    assert vocabulary.unknown == "a"


def test_an_imported_tokeniser_is_unwrapped_and_adds_the_end_token_itself(catalogue, tmp_path):
    tokeniser = {"model": {"vocab": {"a": 5, "</s>": 2}}, "post_processor": {"type": "TemplateProcessing"}}
    texts = {"tokeniser.json": json.dumps({"roles": {}, "rows": 40, "tokenizer": tokeniser}), "spiece.model": b"\xff\x00"}
    exported(built(catalogue), tmp_path, texts)
    assert json.loads((tmp_path / "tokeniser.json").read_text()) == tokeniser
    assert json.loads((tmp_path / "shared_vocabulary.json").read_text())[:6] == ["<0>", "<1>", "</s>", "<3>", "<4>", "a"]
    assert json.loads((tmp_path / "config.json").read_text())["add_source_eos"] is False
    assert (tmp_path / "spiece.model").read_bytes() == b"\xff\x00"
