"""Imported tokenisers give the ids of transformers, whichever files the directory has."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import transformers

import huggingface_tokenisers
from huggingface_tokenisers import MADE, PAIRS, TEXTS, bert, marian, older_files, pieces, words
from tfkit import InputError
from tfkit.data import TextTokeniser, original_files, read_huggingface, read_tokenisers
from tfkit.data.sentencepiece_file import parse_sentencepiece
from tfkit.files import write_content


def compare(theirs: Any, place: Path, tmp_path: Path, rows: int = 2000) -> TextTokeniser:
    """Import a directory and compare ids, special tokens, segments and texts with those of transformers."""
    saved = tmp_path / "saved"
    saved.mkdir()
    for name, content in read_huggingface(place, rows).items():
        write_content(saved / name, content)
    copies, originals = original_files(saved), original_files(place)
    assert copies.keys() == originals.keys()
    assert all(copies[name].read_bytes() == path.read_bytes() for name, path in originals.items())
    ours = read_tokenisers(saved, ("target",))["target"]
    for text, ids in zip(TEXTS, ours.encode(TEXTS), strict=True):
        assert ours.text_frame(ids) == theirs(text)["input_ids"], text
        if not isinstance(theirs, transformers.CLIPTokenizer):  # which encodes only
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
    for pair in PAIRS:
        first, second = ours.encode(pair)
        encoded = theirs(*pair, return_token_type_ids=True)
        assert ours.pair_frame(first, second) == encoded["input_ids"]
        if "token_type_ids" in theirs.model_input_names:
            assert ours.pair_frame.segments_of(len(first), len(second)) == encoded["token_type_ids"]
    for role, number in ours.imported.roles.items():  # type: ignore[union-attr]
        assert number == getattr(theirs, f"{role}_token_id")
    return ours


@pytest.mark.parametrize("name", MADE)
def test_a_saved_tokeniser_is_the_same(name: str, tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    made = MADE[name](place)
    made.save_pretrained(place)
    for each in place.glob("*.model"):
        each.unlink()
    compare(type(made).from_pretrained(place), place, tmp_path)


@pytest.mark.parametrize(
    "name",
    ["bert", "bert_cased", "gpt2", "roberta", "t5", "llama2", "albert", "pegasus", "xlm_roberta", "camembert", "mbart"],
)
def test_older_files_give_the_same_tokeniser(name: str, tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    theirs = older_files(name, place)
    compare(theirs, place, tmp_path)


def test_m2m_has_one_model_and_a_list_of_ids(tmp_path: Path) -> None:
    """The pieces are those of the library sentencepiece, which transformers runs."""
    place = tmp_path / "theirs"
    theirs = huggingface_tokenisers.m2m_100(place)
    saved = tmp_path / "saved"
    saved.mkdir()
    for name, content in read_huggingface(place, 2000).items():
        write_content(saved / name, content)
    ours = read_tokenisers(saved, ("target",))["target"]
    for text, ids in zip(TEXTS, ours.encode(TEXTS), strict=True):
        assert ours.source_frame(ids) == theirs(text)["input_ids"], text


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_has_two_models_and_one_list_of_ids(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    theirs = marian(place)
    saved = tmp_path / "saved"
    saved.mkdir()
    for name, content in read_huggingface(place, len(theirs.get_vocab())).items():
        write_content(saved / name, content)
    ours = read_tokenisers(saved, ("source", "target"))
    for text in [text for text in TEXTS if "<" not in text] + [">>fra<< A man"]:
        source, target = ours["source"].encode([text])[0], ours["target"].encode([text])[0]
        assert ours["source"].source_frame(source) == theirs(text)["input_ids"], text
        assert ours["target"].source_frame(target) == theirs(text_target=text)["input_ids"], text
        decoded = theirs.decode(target, skip_special_tokens=True)
        assert ours["target"].decode(target).split() == decoded.split(), text


def test_files_that_no_tokeniser_is_made_of_are_not_held(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    bert(place).save_pretrained(place)
    unread = [name for name in ("target.spm", "tokenizer.model", "sentencepiece.bpe.model") if not (place / name).exists()]
    for name in unread:
        with (place / name).open("wb") as file:
            file.truncate(40 << 20)
    tracemalloc.start()
    try:
        contents = read_huggingface(place, 2000)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert {*unread} <= contents.keys()
    with (place / "target.spm").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match=r"TFK104 .*target\.spm cannot be read: it has more than [0-9,]+ bytes"):
        read_huggingface(place, 2000)


def test_ids_beyond_the_model_are_an_error(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    bert(place).save_pretrained(place)
    size = len(words())
    read_huggingface(place, size)
    with pytest.raises(InputError, match=rf"TFK106 .*tokenizer\.json: the model has {size - 1} ids, and the tokeniser has"):
        read_huggingface(place, size - 1)


def test_a_sentencepiece_model_of_far_more_pieces_than_the_model_has_ids_is_not_read_on(tmp_path: Path) -> None:
    """A million pieces took ten seconds before they were refused."""
    data = pieces(tmp_path / "spiece.model").read_bytes()
    count = len(parse_sentencepiece(data).pieces)
    assert len(parse_sentencepiece(data, count).pieces) == count
    with pytest.raises(ValueError, match=f"it has more than {count - 1} pieces"):
        parse_sentencepiece(data, count - 1)
