"""Tokenisers decode what they encoded, and no text encodes to a special token."""

import pytest
from hypothesis import given, settings, strategies as st

from tfkit import InputError
from tfkit.data import TextTokeniser
from tfkit.data.tokeniser import divided, train_tokeniser
from tfkit.plugin import Component
from tfkit.recipe.parts import PARTS

TEXT = ["Ein Mann geht, ein Hund läuft.", "Zwei Hunde laufen im Gras!", "Der Mann und der Hund.", "한국어 문장도 있다."] * 3


def made(kind, size=400, sentences=True, texts=TEXT, **options):
    entry = next(entry for entry in PARTS["tokeniser"] if entry.name == kind)
    return train_tokeniser(Component(entry, entry.options(**options)), texts, size, sentences)


SUBWORDS = {kind: made(kind, normalise="none") for kind in ("bpe", "unigram")}
RUNNING = {kind: made(kind, normalise="none", sentences=False) for kind in ("bpe", "unigram")}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize("kind", SUBWORDS)
@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_a_sentence_comes_back_but_for_runs_of_spaces(kind, text):
    tokeniser = SUBWORDS[kind]
    ids = tokeniser.encode([text])[0]
    assert tokeniser.decode(ids).split() == text.replace("▁", "_").split()
    assert min(ids, default=4) >= 4  # neither padding, start, end nor unknown


@pytest.mark.parametrize("kind", RUNNING)
@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_running_text_comes_back_as_it_was(kind, text):
    assert RUNNING[kind].decode(RUNNING[kind].encode([text])[0]) == text.replace("▁", "_")


@pytest.mark.parametrize("kind", SUBWORDS)
@pytest.mark.parametrize("text", ["</s> <s> <pad> <unk>", "<0x41><0xE2>", "a </s>", "▁"])
def test_special_tokens_in_a_text_are_plain_text(kind, text):
    tokeniser = SUBWORDS[kind]
    ids = tokeniser.encode([text])[0]
    assert min(ids) >= 4
    assert tokeniser.decode(ids) == text.replace("▁", "_")


def test_normal_forms_and_case():
    tokeniser = made("bpe", normalise="nfkc", lowercase=True)
    assert tokeniser.decode(tokeniser.encode(["Ｍann ﬁel"])[0]) == "mann fiel"
    decomposed = "la\u0308uft"
    tokeniser = made("bpe", normalise="nfc")
    assert tokeniser.decode(tokeniser.encode([decomposed])[0]) == "läuft"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters"])
@pytest.mark.parametrize("normalise", ["none", "nfc", "nfkc"])
@pytest.mark.parametrize("yes", [False, True])
def test_a_tokeniser_gives_its_settings(kind, normalise, yes):
    options = {"normalise": normalise, "lowercase": yes, **({} if kind == "characters" else {"byte_fallback": yes})}
    tokeniser = made(kind, **options)
    wanted = {"byte_fallback": False, "joint": True, **options, "kind": kind, "vocab_size": tokeniser.size}
    assert TextTokeniser.from_json(tokeniser.to_json(), "again").settings == wanted


def test_characters_know_theirs_and_nothing_else():
    tokeniser = made("characters", texts=["ab\nba"], sentences=False)
    assert tokeniser.decode(tokeniser.encode(["ab\nb"])[0]) == "ab\nb"
    assert tokeniser.encode(["c"])[0] == [3]
    assert tokeniser.size == 4 + 3


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters"])
def test_a_tokeniser_is_saved_whole_and_made_alike_again(kind, tmp_path):
    tokeniser = made(kind)
    (tmp_path / "t.json").write_text(tokeniser.to_json())
    again = TextTokeniser.load(tmp_path / "t.json")
    assert again.digest == tokeniser.digest
    assert again.encode(TEXT) == tokeniser.encode(TEXT)
    assert again.pieces(range(4)) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert made(kind).encode(TEXT) == tokeniser.encode(TEXT)


def test_byte_fallback_encodes_unknown_characters():
    assert SUBWORDS["bpe"].decode(SUBWORDS["bpe"].encode(["日本"])[0]) == "日本"
    plain = made("bpe", byte_fallback=False)
    assert 3 in plain.encode(["日本"])[0]
    assert "<unk>" in plain.decode(plain.encode(["日本"])[0])


def test_a_vocabulary_without_room_is_refused():
    with pytest.raises(
        InputError, match=r"TFK105 a vocabulary of 260 has no room for text in addition to 260 special tokens and bytes"
    ):
        made("bpe", 260)


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", "not json"])
def test_an_invalid_tokeniser_is_reported(text, tmp_path):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InputError, match="TFK104"):
        TextTokeniser.load(tmp_path / "t.json")


def test_a_text_without_room_for_its_characters_is_refused():
    with pytest.raises(
        InputError, match=r"TFK105 no tokeniser is learnt from this text: .*not large enough.*vocab_size` larger"
    ):
        made("unigram", 300, texts=["".join(map(chr, range(0x4E00, 0x5000)))] * 3)


@pytest.mark.parametrize("sentences", [True, False])
def test_a_long_text_is_learnt_from_in_parts_with_the_same_words(sentences, monkeypatch):
    text = [" ".join(TEXT * 9), "one  two   three", "x" * 50, ""]
    whole = made("bpe", texts=text, sentences=sentences).to_json()
    monkeypatch.setattr("tfkit.data.tokeniser.PART", 10)
    parts = list(divided(text[0]))
    assert "".join(parts) == text[0]
    assert max(map(len, parts)) <= 10
    assert list(divided(text[2])) == [text[2]]
    assert made("bpe", texts=text, sentences=sentences).to_json() == whole


def test_a_vocabulary_without_room_for_every_character_is_refused_or_has_the_rare_ones_as_bytes():
    texts = [chr(0x4E00 + number) * (1 + number % 7) for number in range(300)]
    with pytest.raises(InputError, match="the text has 301 different characters, and a vocabulary of 300 has room for 296"):
        made("bpe", 300, texts=texts, byte_fallback=False)
    assert made("bpe", 305, texts=texts, byte_fallback=False).size == 305
    tokeniser = made("bpe", 300, texts=texts)
    assert tokeniser.size == 300
    assert [tokeniser.decode(ids) for ids in tokeniser.encode(texts)] == texts
