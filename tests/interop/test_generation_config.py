"""Settings of `generate` come in as the search of a model: read, named where tfkit has none, and used by default."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin

import tfkit
from parity.comparison import all_in_float64
from tfkit.cli import main
from tfkit.interop.generation_config import settings_of
from tfkit.io.generation_settings import GENERATION, read_settings, settings_text

from .models import make

NEVER = {"num_beams": 3, "early_stopping": "never"}
BEAM = {"kind": "beam", "beams": 3, "length_penalty": {"kind": "power", "alpha": 1.0}, "unfinished": "ranked"}


@pytest.mark.parametrize(
    ("written", "settings", "left_out"),
    [
        ({}, {"kind": "greedy"}, set()),
        ({"bos_token_id": 0, "use_cache": True, "transformers_version": "5", "num_beams": 1}, {"kind": "greedy"}, set()),
        (
            {"max_length": 20, "min_length": 3},
            {"kind": "greedy", "new_tokens": 19, "filters": [{"kind": "min_tokens", "tokens": 2}]},
            set(),
        ),
        ({"max_length": 20, "max_new_tokens": 7}, {"kind": "greedy", "new_tokens": 7}, set()),
        (NEVER, {**BEAM, "early_stopping": "never"}, set()),
        ({"num_beams": 3, "early_stopping": True}, {**BEAM, "early_stopping": True}, set()),
        (
            {
                **NEVER, "length_penalty": 0.6, "no_repeat_ngram_size": 3, "repetition_penalty": 1.2,
                "bad_words_ids": [[5], [6, 7]],
            },
            {
                **BEAM, "length_penalty": {"kind": "power", "alpha": 0.6}, "early_stopping": "never",
                "filters": [
                    {"kind": "repetition_penalty", "factor": 1.2}, {"kind": "no_repeat_ngram", "size": 3},
                    {"kind": "bad_words", "sequences": [[5], [6, 7]]},
                ],
            },
            set(),
        ),
        ({"num_beams": 3}, {**BEAM, "early_stopping": False}, set()),
        ({"num_beams": 1, "early_stopping": True}, {"kind": "greedy"}, set()),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
            {"kind": "sample", "temperature": 0.6, "top_p": 0.9, "top_k": 50},
            set(),
        ),
        ({"do_sample": True, "top_k": 0}, {"kind": "sample"}, set()),
        ({"temperature": 1, "top_p": 0, "pad_token_id": -1, "use_cache": None}, {"kind": "greedy"}, set()),
        ({"temperature": 0.6}, {"kind": "greedy"}, set()),  # no sampling: `generate` does not read it either
        ({"penalty_alpha": 0.6, "typical_p": 1.0, "typo": 3}, {"kind": "greedy"}, {"penalty_alpha", "typo"}),
        (
            {"forced_eos_token_id": [4], "forced_bos_token_id": None},
            {"kind": "greedy", "filters": [{"kind": "forced_last", "id": 4}]},
            set(),
        ),
        ({"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "suppress_tokens": []}, {"kind": "greedy"}, set()),
        ({"forced_eos_token_id": []}, {"kind": "greedy"}, set()),
        ({"forced_eos_token_id": [7, 4]}, {"kind": "greedy", "filters": [{"kind": "forced_last", "id": 4}]}, set()),
        (
            {"forced_bos_token_id": 5, "begin_suppress_tokens": [6]},
            {
                "kind": "greedy",
                "filters": [{"kind": "forced_first", "id": 5}, {"kind": "suppress_first", "ids": [6], "after": 1}],
            },
            set(),
        ),
        (
            {"bad_words_ids": [[2], [8], [2, 3]], "eos_token_id": 2},
            {"kind": "greedy", "filters": [{"kind": "bad_words", "sequences": [[8], [2, 3]]}]},
            set(),
        ),
    ],
)  # fmt: skip
def test_settings_of_an_encoder_decoder(written: dict[str, Any], settings: dict[str, Any], left_out: set[str]) -> None:
    found, reasons = settings_of(written, encoder_decoder=True)
    assert found.model_dump(exclude_defaults=True) == {**settings, "special_tokens": True}
    assert reasons.keys() == left_out


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ({"num_beams": 0}, "num_beams"),
        ({"num_beams": 2, "early_stopping": "always"}, "early_stopping"),
        ({"num_beams": 2, "length_penalty": 99.0}, "length_penalty"),
        ({"max_new_tokens": -1}, "max_new_tokens or max_length"),
        ({"num_beams": True}, "num_beams is True: "),
        ({"num_beams": 0, "do_sample": True}, "num_beams is 0: "),
        ({"do_sample": "yes"}, "do_sample is 'yes': "),
        ({"length_penalty": "a"}, "length_penalty is 'a': "),
        ({"length_penalty": True, "num_beams": 2}, "length_penalty is True: "),
        ({"early_stopping": 1}, "early_stopping is 1: "),
        ({"max_length": 0}, "max_length is 0: "),
        ({"min_length": "3"}, "min_length is '3': "),
        ({"temperature": "hot"}, "temperature is 'hot': "),
        ({"top_p": 2.0}, "top_p is 2.0: "),
        ({"top_k": -5}, "top_k is -5: "),
        ({"repetition_penalty": True}, "repetition_penalty is True: "),
        ({"suppress_tokens": [True]}, "suppress_tokens is True: "),
        ({"forced_eos_token_id": [False]}, "forced_eos_token_id is "),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>': "),
        ({"num_return_sequences": True}, "num_return_sequences is True: "),
    ],
)
def test_errors_have_the_names_of_the_file(written: dict[str, Any], name: str) -> None:
    with pytest.raises(tfkit.InputError, match=rf"TFK142 generation_config.json: {name}"):
        settings_of(written, encoder_decoder=True)


def test_long_lists_of_ids_take_linear_time() -> None:
    """They took 48 s."""
    words = [[number] for number in range(60_000)]
    settings, _ = settings_of({"bad_words_ids": words, "eos_token_id": list(range(59_000))}, True)
    assert [len(named["sequences"]) for named in settings.filters] == [1000]


def test_a_negative_length_penalty_is_named_and_0_is_used() -> None:
    found, reasons = settings_of({"num_beams": 2, "length_penalty": -1.0}, encoder_decoder=True)
    assert found.length_penalty is not None
    assert (found.length_penalty.alpha, reasons.keys()) == (0.0, {"length_penalty"})


def test_a_forced_first_token_of_a_decoder_is_named() -> None:
    """`generate` forces it after a prompt of one token alone."""
    found, reasons = settings_of({"forced_bos_token_id": 5}, encoder_decoder=False)
    assert (found.filters, reasons.keys()) == ([], {"forced_bos_token_id"})


@pytest.mark.slow
def test_settings_of_an_old_configuration_are_read_or_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("MarianMTModel").save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "generation_config.json").unlink()
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    others = {"typical_p": 0.5, "diversity_penalty": 0.3, "exponential_decay_length_penalty": [3, 1.1]}
    config |= {**others, "num_beams": 2, "bad_words_ids": [[60]]}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "model"), "--without-tokeniser"]) == 0
    printed = capsys.readouterr().out
    assert all(f"`{name}`" in printed for name in others)
    settings = read_settings(tmp_path / "model")
    assert settings is not None
    assert settings.beams == 2


@pytest.mark.slow
def test_ends_that_generate_would_not_have_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("MarianMTModel").save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "generation_config.json").write_text('{"num_beams": 2}')
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "model"), "--without-tokeniser"]) == 0
    printed = capsys.readouterr().out
    assert "`eos_token_id`: it is absent, so `generate` never ends before its limit; the model has 0, of config.json" in printed
    assert "`decoder_start_token_id`: it is absent, so `generate` starts with `bos_token_id`; the model has 60" in printed


def test_lengths_that_count_the_prompt_are_named() -> None:
    found, reasons = settings_of({"max_length": 20, "min_length": 3, "min_new_tokens": 2}, encoder_decoder=False)
    assert found.filters == [{"kind": "min_tokens", "tokens": 2}]
    assert reasons.keys() == {"max_length", "min_length"}


@pytest.mark.parametrize(
    "written",
    [
        {"num_beams": 2, "early_stopping": "always"}, {"num_beams": 2, "early_stopping": 1},
        {"num_beams": 0}, {"num_beams": "4"}, {"num_beams": 10**9}, {**NEVER, "length_penalty": "a"},
        {"do_sample": True, "top_p": 7}, {"max_new_tokens": -1}, {"max_length": "20"},
        {"repetition_penalty": [1]}, {"do_sample": True, "temperature": -0.5},
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(written: dict[str, Any]) -> None:
    with pytest.raises(tfkit.InputError, match=r"TFK142 generation_config.json: "):
        settings_of(written, encoder_decoder=True)


SETTINGS: dict[str, dict[str, Any]] = {
    "MarianMTModel": {
        "num_beams": 4, "early_stopping": "never", "max_length": 12, "bad_words_ids": [[60]], "length_penalty": 1.4,
    },
    "BartForConditionalGeneration": {
        "num_beams": 3, "early_stopping": "never", "no_repeat_ngram_size": 2, "min_length": 5, "max_length": 14,
        "forced_bos_token_id": 7, "forced_eos_token_id": 2, "begin_suppress_tokens": [7, 20, 46], "bad_words_ids": [[2], [9]],
    },
    "T5ForConditionalGeneration": {"max_new_tokens": 9, "repetition_penalty": 1.3, "suppress_tokens": [4, 5]},
    "M2M100ForConditionalGeneration": {
        "num_beams": 4, "early_stopping": True, "max_length": 13, "forced_bos_token_id": 9, "length_penalty": 0.8,
    },
    "MBartForConditionalGeneration": {"num_beams": 4, "max_length": 13, "forced_bos_token_id": 11, "forced_eos_token_id": 2},
    "PegasusForConditionalGeneration": {"num_beams": 4, "length_penalty": 0.8, "max_length": 12, "no_repeat_ngram_size": 3},
    "MT5ForConditionalGeneration": {"num_beams": 4, "early_stopping": False, "max_new_tokens": 9, "min_new_tokens": 4},
    "GPT2LMHeadModel": {"num_beams": 4, "max_new_tokens": 9, "repetition_penalty": 1.2, "bad_words_ids": [[7, 8], [9]]},
    "LlamaForCausalLM": {"max_new_tokens": 9, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
    "WhisperForConditionalGeneration": {
        "num_beams": 4, "max_length": 10, "suppress_tokens": [3, 4], "begin_suppress_tokens": [10, 58],
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_an_imported_model_generates_as_it_did(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an option, `generate` and tfkit give the same ids."""
    with all_in_float64():
        theirs = make(name)
        for key, value in SETTINGS[name].items():
            setattr(theirs.generation_config, key, value)
        draw = torch.Generator().manual_seed(5)
        source = torch.randint(4, 57, (4, 7), generator=draw)
        given: dict[str, Any] = {"inputs": source, "attention_mask": torch.ones_like(source)}
        if sound := name.startswith("Whisper"):  # its own `generate` cuts sound into pieces, and calls this one
            given = {"input_features": torch.randn(4, 10, 30, generator=draw)}
        if name.startswith("MBart"):  # as in the published configurations; the class has no default
            theirs.config.decoder_start_token_id = theirs.generation_config.decoder_start_token_id = 2
        prompt = 7 if name in ("GPT2LMHeadModel", "LlamaForCausalLM") else 1
        expected = GenerationMixin.generate(theirs, use_cache=False, **given)[:, prompt:].tolist()
    theirs.save_pretrained(tmp_path / "hf")
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "model"), "--without-tokeniser"]) == 0
    assert "generation.json" in capsys.readouterr().out
    model = tfkit.load(tmp_path / "model").eval()
    search = tfkit.saved_search(tmp_path / "model")
    assert search is not None
    if sound:
        assert search.kind == "beam"
        assert search.length_factor == 0
        found = tfkit.beam_search(
            model, **{next(iter(model.plan.inputs)): given["input_features"].mT}, beams=search.beams,
            length_penalty=search.length_penalty, early_stopping=search.early_stopping, unfinished=search.unfinished,
            filters=search.filters, max_new_tokens=search.extra_length,
        )  # fmt: skip
    else:
        found = tfkit.generate_batched(model, source.tolist(), search)
    for (one, *_), row in zip(found, expected, strict=True):
        assert one.ids.tolist() == row[: len(one.ids)]
        assert len(set(row[len(one.ids) :])) <= 1


@pytest.mark.slow
def test_a_prompt_may_hold_the_end_token_where_it_is_also_the_id_of_padding(tmp_path: Path) -> None:
    """As in the files of chat models, whose turns end with it. Without a mask `generate` hides nothing either."""
    with all_in_float64():
        theirs = make("LlamaForCausalLM")
        theirs.config.pad_token_id = theirs.generation_config.pad_token_id = end = theirs.config.eos_token_id
        prompt = torch.randint(4, 57, (3, 9), generator=torch.Generator().manual_seed(5))
        prompt[0, 4] = prompt[1, 2:4] = prompt[2, 0] = end
        expected = GenerationMixin.generate(theirs, inputs=prompt, max_new_tokens=6)[:, 9:].tolist()
    theirs.save_pretrained(tmp_path / "hf")
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "model"), "--without-tokeniser"]) == 0
    model = tfkit.load(tmp_path / "model").eval()
    search = tfkit.Search(kind="greedy", length_factor=0, extra_length=6)
    for (one,), row in zip(tfkit.generate_batched(model, prompt.tolist(), search), expected, strict=True):
        assert one.ids.tolist() == row[: len(one.ids)]
        assert set(row[len(one.ids) :]) <= {end}


SIX = (
    "MarianMTModel", "BartForConditionalGeneration", "M2M100ForConditionalGeneration", "T5ForConditionalGeneration",
    "GPT2LMHeadModel", "WhisperForConditionalGeneration",
)  # fmt: skip
SOURCE = torch.randint(4, 57, (3, 7), generator=torch.Generator().manual_seed(5))
SOUND = torch.randn(3, 10, 30, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


def new_ids(theirs: Any, settings: dict[str, Any], tokens: int, given: dict[str, Any]) -> list[list[int]]:
    """The new ids of every row with these settings, and so many new tokens unless they say otherwise."""
    ids = {name: getattr(theirs.generation_config, name) for name in ("eos_token_id", "pad_token_id", "decoder_start_token_id")}
    limit = {} if "max_length" in settings else {"max_new_tokens": tokens}
    cached = "input_ids" in given  # the random models are small, and give the same bits without a cache
    config = GenerationConfig(**ids, **limit, **settings, use_cache=cached)
    made = GenerationMixin.generate(theirs, generation_config=config, **given)
    return made[:, 1 if theirs.config.is_encoder_decoder else next(iter(given.values())).shape[1] :].tolist()


def ids_of_transformers(theirs: Any, settings: dict[str, Any]) -> list[list[int]]:
    sound = theirs.config.model_type == "whisper"
    given = {"input_features": SOUND} if sound else {"inputs": SOURCE, "attention_mask": torch.ones_like(SOURCE)}
    return new_ids(theirs, settings, 8, given)


def ids_of_tfkit(model: tfkit.Model, search: tfkit.Search) -> list[list[int]]:
    if set(model.plan.inputs) != {"audio", "target"}:
        return [one.ids.tolist() for (one, *_) in tfkit.generate_batched(model, SOURCE.tolist(), search)]
    rules: dict[str, Any] = {"audio": SOUND.mT, "filters": search.filters, "max_new_tokens": search.extra_length}
    if search.kind == "greedy":
        return [one.ids.tolist() for (one,) in tfkit.greedy(model, scores=True, **rules).hypotheses()]
    names = ("beams", "length_penalty", "early_stopping", "unfinished")
    rows = tfkit.beam_search(model, **rules, **{name: getattr(search, name) for name in names})
    return [row[0].ids.tolist() for row in rows]


def varied(name: str) -> Any:
    """A model whose sequences do not repeat one token, and whose end token is one of theirs."""
    theirs = make(name)
    with torch.no_grad():
        for key, parameter in theirs.named_parameters():
            if "encoder_attn.out_proj" in key:  # otherwise the source hides what the tokens before say
                parameter.mul_(0.1)
            if name == "MarianMTModel" and key.endswith("bias"):  # and its biases hide both
                parameter.zero_()
        if name == "MarianMTModel":
            theirs.final_logits_bias.zero_()
    usual = theirs.generation_config
    usual.eos_token_id, usual.decoder_start_token_id = None, getattr(theirs.config, "decoder_start_token_id", None)
    *_, (seldom, _) = Counter(token for row in ids_of_transformers(theirs, {}) for token in row[2:6]).most_common()
    theirs.config.eos_token_id = usual.eos_token_id = seldom
    return theirs


def alone_and_together(
    theirs: Any, beams: int, ids_with: Callable[[dict[str, Any]], list[list[int]]]
) -> dict[str, dict[str, Any]]:
    """By name, settings that change what the model says without them."""
    end, several = theirs.config.eos_token_id, theirs.config.is_encoder_decoder
    ids = [token for row in ids_with({"num_beams": beams}) for token in row if token != end]
    often = [token for token, _ in Counter([*ids, 20, 21, 22]).most_common(3)]
    settings: dict[str, Any] = {
        "min_new_tokens": 5, "forced_eos_token_id": end, "suppress_tokens": often[:2], "begin_suppress_tokens": often,
        "bad_words_ids": [[often[0]], [often[1], often[2]]], "no_repeat_ngram_size": 2, "repetition_penalty": 1.7,
        **({"forced_bos_token_id": 33, "max_length": 6, "min_length": 5} if several else {}),
        **({"length_penalty": 0.3, "early_stopping": True} if beams > 1 else {}),
    }  # fmt: skip
    more = {"stopping never": {"early_stopping": "never"}, "long ones": {"length_penalty": 3.0}} if beams > 1 else {}
    return {"none": {}, **{name: {name: value} for name, value in settings.items()}, **more, "together": settings}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIX)
def test_every_setting_alone_and_together_gives_the_ids_of_transformers(name: str, tmp_path: Path) -> None:
    """Greedy and with 4 beams."""
    with all_in_float64():
        theirs = varied(name)
    theirs.save_pretrained(tmp_path / "hf")
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "model"), "--without-tokeniser"]) == 0
    model, changed = tfkit.load(tmp_path / "model").eval(), set()
    for beams in (1, 4):
        usual: list[list[int]] = []
        for named, settings in alone_and_together(
            theirs, beams, lambda settings: ids_of_transformers(theirs, settings)
        ).items():
            written = {"num_beams": beams, **settings}
            with all_in_float64():
                expected = ids_of_transformers(theirs, written)
            usual = usual or expected
            changed |= {named} if expected != usual else set()
            limit = {} if "max_length" in settings else {"max_new_tokens": 8}
            end = {"eos_token_id": theirs.config.eos_token_id}
            read, left_out = settings_of({**written, **limit, **end}, theirs.config.is_encoder_decoder)
            assert not left_out
            (tmp_path / "model" / GENERATION).write_text(settings_text(read))
            search = tfkit.saved_search(tmp_path / "model")
            assert search is not None
            for ours, row in zip(ids_of_tfkit(model, search), expected, strict=True):
                assert ours == row[: len(ours)], (named, beams)
                assert len(set(row[len(ours) :])) <= 1, (named, beams)
    assert len(changed) >= 8, changed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"no_repeat_ngram_size": -2}, "no_repeat_ngram_size is -2: score filter `no_repeat_ngram`: size: "),
        ({"do_sample": True, "top_k": 2**63}, f"top_k is {2**63}: Input should be less than"),
        ({"forced_bos_token_id": 2**40}, f"forced_bos_token_id has the id {2**40}, and the vocabulary has "),
        ({"bad_words_ids": [[3], [4, 9999]]}, "bad_words_ids has the id 9999, and the vocabulary has "),
    ],
)
def test_a_setting_that_no_search_takes_is_refused_by_import(
    settings: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make("MarianMTModel").save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(settings))
    assert main(["import", str(tmp_path / "hf"), "-o", str(tmp_path / "model"), "--without-tokeniser"]) == 2
    assert f"generation_config.json: {message}" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", r"generation.json: kind: Field required"),
        ('{"kind": "beams"}', r"generation.json: kind: "),
        ('{"kind": "beam", "beams": 65536}', r"generation.json: beams: .* 1000"),  # 9 GB for a sentence
        ('{"kind": "greedy", "beams": 3}', r"generation.json: beams is 3, which a greedy search does not read"),
        ('{"kind": "greedy", "filters": [{"kind": "nope"}]}', r"generation.json: there is no score filter 'nope'"),
        ('{"kind": "greedy", "filters": [{"size": 2}]}', r"generation.json: there is no score filter None"),
        (
            '{"kind": "greedy", "filters": [{"kind": "min_tokens", "catalogue": 2}]}',
            r"generation.json: score filter `min_tokens`: tokens: Field required",
        ),
        ('{"kind": "greedy", "filters": [{"kind": "min_tokens", "tokens": 0}]}', r"score filter `min_tokens`: tokens: "),
        ("[1]", r"generation.json: "),
    ],
)
def test_a_wrong_file_of_a_model_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / GENERATION).write_text(content)
    with pytest.raises(tfkit.StoreError, match=message):
        tfkit.saved_search(tmp_path)


PUT: dict[str, Callable[[Path], object]] = {
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "named pipe": os.mkfifo,
    "directory": Path.mkdir,
    "empty": Path.touch,
    "deep": lambda path: path.write_text("[" * 100_000),
    "wide": lambda path: path.write_text(json.dumps({"kind": "greedy", "filters": [{"kind": "suppress"}] * 50_000})),
    "long": lambda path: path.write_text(json.dumps({"kind": "x" * 5_000_000})),
}


@pytest.mark.parametrize("kind", PUT)
def test_something_else_in_place_of_the_file_is_refused(kind: str, tmp_path: Path) -> None:
    PUT[kind](tmp_path / GENERATION)
    with pytest.raises(tfkit.StoreError, match=str(tmp_path)) as refused:
        tfkit.saved_search(tmp_path)
    assert len(str(refused.value)) < 2_000


def test_a_model_without_the_file_has_no_search_of_its_own(tmp_path: Path) -> None:
    assert read_settings(tmp_path) is None
    assert tfkit.saved_search(tmp_path) is None


def test_samples_of_a_model_draw_a_seed(tmp_path: Path) -> None:
    (tmp_path / GENERATION).write_text(json.dumps({"kind": "sample", "top_p": 0.5}))
    first, second = tfkit.saved_search(tmp_path), tfkit.saved_search(tmp_path)
    assert first is not None
    assert second is not None
    assert first.seed != second.seed
    assert first.top_p == 0.5
