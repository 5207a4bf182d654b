"""Texts that would take much memory or time are refused before the library of tokenisers reads them."""

import base64
import copy
import json
import random
from unicodedata import normalize

import pytest
from tokenizers import Tokenizer, normalizers

from huggingface_tokenisers import MADE
from tfkit import InputError, load_recipe
from tfkit.data import TextTokeniser, read_huggingface
from tfkit.data.huggingface_steps import FASTER, GROWTH, check_charsmap
from tfkit.data.kinds import text_rows
from tfkit.data.text_bounds import MAX_BYTES, MAX_WORK, TextBounds, longest_chain
from tfkit.data.tokeniser import train_tokeniser
from tfkit.plugin import Component
from tfkit.recipe.parts import PARTS
from translation_task import write_task

LIGATURE = "\ufdfa"
"""NFKC makes 18 characters of it."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What tfkit saves of some tokenisers."""
    saved = {}
    for name in ("bert", "gpt2", "t5", "llama2"):
        place = tmp_path_factory.mktemp(name)
        MADE[name](place).save_pretrained(place)
        saved[name] = json.loads(read_huggingface(place, 2000)["tokeniser.json"])
    return saved


def changed(data, **parts):
    """A saved tokeniser with other parts of its `tokenizer.json`."""
    return TextTokeniser.from_json(json.dumps({**data, "tokenizer": {**data["tokenizer"], **parts}}), "t.json")


def own(kind):
    entry = next(entry for entry in PARTS["tokeniser"] if entry.name == kind)
    return train_tokeniser(Component(entry, entry.options(normalise="nfkc")), ["the old dog sees the house"] * 9, 400)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters"])
def test_a_text_with_half_of_a_pair_of_surrogates_is_refused_before_the_library_reads_it(kind):
    tokeniser = own(kind)
    for call in (
        tokeniser.normalised, tokeniser.words, tokeniser.divided_words,
        lambda text: tokeniser.encode(["a", text]), lambda text: tokeniser.encode_with_ranges([text]),
    ):  # fmt: skip
        with pytest.raises(InputError, match="TFK104 a text is no UTF-8; decode its bytes as UTF-8"):
            call("the \udcff")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters"])
def test_a_text_that_becomes_too_long_is_refused_before_it_is_normalised(kind):
    tokeniser = own(kind)
    for call in (
        tokeniser.normalised,
        lambda text: tokeniser.encode(["a", text]),
        lambda text: tokeniser.encode_with_ranges([text]),
    ):
        with pytest.raises(InputError, match=r"TFK101 a text of 349,525 characters becomes more than [0-9,]+ bytes, the limit"):
            call(LIGATURE * (MAX_BYTES // 3))
    assert len(tokeniser.encode([LIGATURE * 9000])[0]) > 9000


def test_training_text_that_becomes_too_long_has_a_place(tmp_path):
    recipe = load_recipe(write_task(tmp_path), ["tokeniser.normalise=nfkc"])
    lines = ["the old dog"] * 3 + [LIGATURE * (MAX_BYTES // 3)]
    for side in ("src", "trg"):
        (tmp_path / f"train.{side}").write_text("\n".join(lines) + "\n")
    files = {column: str(tmp_path / f"train.{side}") for column, side in (("source", "src"), ("target", "trg"))}
    with pytest.raises(
        InputError, match=r"train.src:4:1: TFK101 a text of 349,525 characters becomes more than 1,048,576 bytes"
    ):
        list(text_rows(recipe, files))


def test_the_growth_of_a_normaliser_is_that_of_unicode():
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert GROWTH[form] == max(len(normalize(form, chr(number))) for number in range(0x30000))
    assert GROWTH["Lowercase"] == max(len(chr(number).lower()) for number in range(0x30000))


def test_steps_that_grow_after_each_other_are_bounded_together(files):
    """Each step may be small: the text between two steps counts, even where the last one shortens it."""
    steps = [{"type": "NFKC"}, {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 50},
             {"type": "Replace", "pattern": {"String": "b" * 50}, "content": ""}]  # fmt: skip
    tokeniser = changed(files["bert"], normalizer={"type": "Sequence", "normalizers": steps})
    with pytest.raises(InputError, match="TFK101"):
        tokeniser.encode(["a" * 100_000])
    assert tokeniser.encode(["x" * 100_000])
    strips = {"type": "Sequence", "normalizers": [{"type": "Strip", "strip_left": True, "strip_right": True},
              {"type": "Replace", "pattern": {"String": " "}, "content": "#" * 60}]}  # fmt: skip
    with pytest.raises(InputError, match="TFK101"):
        changed(files["bert"], normalizer=strips).encode([f"x{' ' * 100_000}x"])


def test_the_work_of_a_vocabulary_bounds_a_text(files):
    long = copy.deepcopy(files["bert"]["tokenizer"]["model"])
    long["max_input_chars_per_word"] = 1000
    with pytest.raises(InputError, match="TFK101 a text of 60,000 characters becomes more than 44,739 bytes"):
        changed(files["bert"], model=long).encode(["a" * 60_000])
    assert changed(files["bert"]).encode(["a" * 60_000])
    unigram = copy.deepcopy(files["t5"]["tokenizer"]["model"])
    unigram["vocab"] += [
        ["a" * count, -1.0] for count in range(2, 257) if ["a" * count] not in [each[:1] for each in unigram["vocab"]]
    ]
    with pytest.raises(InputError, match="TFK101"):
        changed(files["t5"], model=unigram, added_tokens=[]).encode(["a" * 40_000])
    assert longest_chain(["a", "ab", "abc", "b", "é"]) == 1 + 1 + 2 + 3
    assert longest_chain(each for each, _ in files["t5"]["tokenizer"]["model"]["vocab"]) < MAX_WORK // MAX_BYTES


def test_texts_are_given_to_the_library_in_groups_that_it_has_memory_for():
    calls = list(TextBounds(None).calls(["a" * 500_000] * 5 + ["b"] * 1000))
    assert [len(call) for call in calls] == [2, 2, 1001]
    assert list(TextBounds(None).calls([])) == []


def test_an_expression_of_quadratic_time_is_replaced_by_one_with_the_same_matches(files):
    [[written, run]] = FASTER.items()
    assert written == r" +▁"
    step = {"type": "Replace", "pattern": {"Regex": written}, "content": "▁"}
    tokeniser = changed(files["t5"], normalizer=step)
    assert run in str(tokeniser._tokeniser.normalizer)
    assert json.loads(tokeniser.to_json())["tokenizer"]["normalizer"] == step
    parts = json.loads(Tokenizer.from_str(json.dumps(files["t5"]["tokenizer"])).to_str())
    plain = Tokenizer.from_str(json.dumps({**parts, "normalizer": step})).normalizer
    draw = random.Random(1)
    for _ in range(300):
        text = "".join(draw.choices(" ▁x", k=12))
        assert tokeniser.normalised(text) == plain.normalize_str(text)
    assert isinstance(plain, normalizers.Replace)


def test_no_damaged_table_of_characters_makes_the_library_panic(files, capfd):
    good = base64.b64decode(files["t5"]["tokenizer"]["normalizer"]["precompiled_charsmap"])
    size = int.from_bytes(good[:4], "little")
    check_charsmap(good)
    text = "".join(map(chr, range(1, 0x3000))) + "\uff21\uff22 ﬁ" + LIGATURE
    draw = random.Random(3)
    accepted = 0
    for number in range(60):
        damaged = bytearray(good)
        for _ in range(1 + number % 3):
            damaged[draw.randrange(4, 4 + size)] = draw.randrange(256)
        step = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(damaged).decode()}
        try:
            tokeniser = changed(files["t5"], normalizer=step)
        except InputError:
            continue
        accepted += 1
        tokeniser.normalised(text)
    assert accepted < 60
    assert "panicked" not in capfd.readouterr().err


def test_parts_at_which_the_library_panics_are_refused(files, capfd):
    strip = {"type": "Strip", "content": "a", "start": 0, "stop": 1}
    with pytest.raises(InputError, match="decoder, step 1, Strip: stop"):
        changed(files["gpt2"], decoder=strip)
    model = {**files["gpt2"]["tokenizer"]["model"], "continuing_subword_prefix": "##"}
    with pytest.raises(InputError, match="the second piece of every merge starts with `continuing_subword_prefix`"):
        changed(files["gpt2"], model=model)
    assert not capfd.readouterr().err


def test_ranges_end_with_the_text_where_a_tokeniser_adds_to_it(files):
    step = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "ab"}, {"type": "NFKD"}]}
    tokeniser = changed(files["llama2"], normalizer=step)
    for text in ("a", "aa", "é", "\ufdfa", " a "):
        for _, ranges in tokeniser.encode_with_ranges([text]):
            assert all(0 <= start <= end <= len(text) for start, end in ranges)
