"""Tokens that the files beside a vocabulary add get the ids of transformers, or are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from huggingface_tokenisers import PAIRS, TEXTS, bert, older_files
from tfkit import InputError
from tfkit.data import TextTokeniser, read_huggingface, read_tokenisers
from tfkit.files import write_content

FAMILIES = ["bert", "bert_cased", "gpt2", "roberta", "t5", "llama2", "albert", "pegasus", "xlm_roberta", "camembert", "mbart"]
ADDED_TEXTS = [
    "The <dom> sees a<dom>b <dom>", "<dom>", " <dom> ,<two> x<two>y", "<DOM> and <Two>", "a <dom> <dom>  <two>\t<two>b",
    "e<two>\u0301",
]  # fmt: skip


def flags(content: str, **values: bool) -> dict[str, Any]:
    return {"content": content, **dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False), **values}


def write(place: Path, name: str, data: dict[str, Any]) -> None:
    path = place / name
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(old | data))


def listed(place: Path, size: int) -> None:
    write(place, "added_tokens.json", {"<two>": size + 1, "<dom>": size})


def listed_special(place: Path, size: int) -> None:
    listed(place, size)
    write(place, "special_tokens_map.json", {"additional_special_tokens": ["<two>"]})


def decoder(place: Path, size: int) -> None:
    write(
        place, "tokenizer_config.json",
        {"added_tokens_decoder": {str(size + 1): flags("<two>", special=True), str(size): flags("<dom>", normalized=True)}},
    )  # fmt: skip


def decoder_flags(place: Path, size: int) -> None:
    tokens = [flags("<two>", lstrip=True, rstrip=True, special=True), flags("<dom>", single_word=True, normalized=True)]
    write(place, "tokenizer_config.json", {"added_tokens_decoder": {str(size + at): token for at, token in enumerate(tokens)}})


def additional(place: Path, size: int) -> None:
    write(place, "tokenizer_config.json", {"additional_special_tokens": ["<two>", "<dom>"]})


def extra(place: Path, size: int) -> None:
    tokens = [{"__type": "AddedToken", **flags("<two>", lstrip=True)}, "<dom>"]
    write(place, "tokenizer_config.json", {"extra_special_tokens": tokens})


def named(place: Path, size: int) -> None:
    write(place, "tokenizer_config.json", {"image_token": "<dom>", "extra_special_tokens": {"two_token": "<two>"}})


def mapped(place: Path, size: int) -> None:
    write(place, "special_tokens_map.json", {"additional_special_tokens": ["<dom>", "<two>"]})


def imported(place: Path, rows: int = 2000) -> TextTokeniser:
    saved = place.parent / "saved"
    saved.mkdir()
    for name, content in read_huggingface(place, rows).items():
        write_content(saved / name, content)
    return read_tokenisers(saved, ("target",))["target"]


def check_equal(ours: TextTokeniser, theirs: Any) -> None:
    texts = ADDED_TEXTS + TEXTS
    for text, ids in zip(texts, ours.encode(texts), strict=True):
        assert ours.text_frame(ids) == theirs(text)["input_ids"], text
    for first, second in PAIRS:
        assert ours.pair_frame(*ours.encode([first, second])) == theirs(first, second)["input_ids"]
    for role, number in ours.imported.roles.items():  # type: ignore[union-attr]
        assert number == getattr(theirs, f"{role}_token_id"), role


def roles(place: Path, size: int) -> None:
    write(place, "special_tokens_map.json", {"pad_token": flags("<two>", rstrip=True)})
    write(place, "tokenizer_config.json", {"pad_token": "<dom>", "extra_special_tokens": ["<dom>"]})


def mask(place: Path, size: int) -> None:
    token = flags("<mask>" if (place / "merges.txt").exists() else "[MASK]", lstrip=True, normalized=True)
    write(place, "special_tokens_map.json", {"mask_token": token})


FORMS = [listed, listed_special, decoder, decoder_flags, additional, extra, named, mapped, roles]
CASES = [
    *((family, form) for family in FAMILIES for form in (listed_special, decoder_flags)),
    *((family, form) for family in ("bert", "gpt2", "llama2") for form in FORMS if form not in (listed_special, decoder_flags)),
]


@pytest.mark.parametrize(("family", "form"), [case for case in CASES if case != ("llama2", mapped)])
def test_added_tokens_beside_older_files(family: str, form: Any, tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    theirs = older_files(family, place)
    form(place, len(theirs))
    check_equal(imported(place), type(theirs).from_pretrained(place))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_flags_of_a_role_are_kept(family: str, tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    theirs = older_files(family, place)
    mask(place, len(theirs))
    theirs, ours = type(theirs).from_pretrained(place), imported(place)
    check_equal(ours, theirs)
    text = f"a dog {theirs.mask_token} runs"
    assert ours.text_frame(ours.encode([text])[0]) == theirs(text)["input_ids"]


@pytest.mark.parametrize("form", [listed, decoder_flags, extra, roles], ids=lambda form: form.__name__)
def test_added_tokens_beside_a_whole_tokeniser(form: Any, tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    theirs = bert(place)
    theirs.save_pretrained(place)
    form(place, len(theirs))
    check_equal(imported(place), type(theirs).from_pretrained(place))


@pytest.mark.parametrize("family", ["llama2", "t5"])
def test_tokens_that_the_next_version_leaves_out_are_refused(family: str, tmp_path: Path) -> None:
    """transformers 4 read these, and transformers 5 does not."""
    place = tmp_path / "theirs"
    mapped(place, len(older_files(family, place)))
    with pytest.raises(InputError, match=r"TFK104 .*map\.json .*: transformers 5 leaves .<dom>. out"):
        imported(place)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("family", ["marian", "m2m_100"])
def test_a_token_that_a_closed_vocabulary_lacks_is_refused(family: str, tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    additional(place, len(older_files(family, place)))
    with pytest.raises(InputError, match=r"TFK104 .*: the added token .<two>. is none"):
        imported(place)


@pytest.mark.parametrize(
    ("name", "data", "rows", "message"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": {"9000": flags("<dom>")}}, 9999, "<dom>.* id 300, not 9000"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": flags("<dom>")}}, 9999, 'added_tokens_decoder: "x" is no id'),
        ("tokenizer_config.json", {"added_tokens_decoder": [flags("<dom>")]}, 9999, "TFK104 .*another type"),
        ("tokenizer_config.json", {"extra_special_tokens": ["<dom>"]}, 300, "TFK106 .*.<dom>. would have the id 300"),
        ("tokenizer_config.json", {"split_special_tokens": True}, 300, "split_special_tokens: tfkit never splits"),
        ("added_tokens.json", {"<dom>": "300"}, 999, r'added_tokens\.json .*: "300" is no id'),
        ("added_tokens.json", {"<dom>": 300, "<two>": 300}, 999, '"<dom>" and "<two>" have the id 300'),
        ("added_tokens.json", {f"<{at:0250}>": 300 + at for at in range(8_000)}, 9000, "they have 2,016,[0-9]+ char"),
        ("added_tokens.json", {f"<{at}>": 300 + at for at in range(100_001)}, 999, "100,001 added tokens: at most 100,000"),
    ],
)  # fmt: skip
def test_tokens_without_their_ids_are_refused(name: str, data: Any, rows: int, message: str, tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    assert len(older_files("bert", place)) == 300
    write(place, name, data)
    with pytest.raises(InputError, match=message):
        imported(place, rows)


def test_a_role_whose_token_has_no_id_of_the_model_is_no_token(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    older_files("bert", place)
    write(place, "tokenizer_config.json", {"bos_token": "<dom>"})
    assert imported(place, 300).imported.roles.keys() == {"unk", "sep", "pad", "cls", "mask"}  # type: ignore[union-attr]
