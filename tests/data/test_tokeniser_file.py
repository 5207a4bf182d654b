"""A tokeniser file has the parts of tfkit's own tokenisers, within limits; everything else is refused before it is run."""

import copy
import json
import os
import re

import pytest
from pydantic import ValidationError
from tokenizers import Regex, Tokenizer, models, normalizers

from tfkit import InputError
from tfkit.data import TextTokeniser
from tfkit.data.text_bounds import TextBounds
from tfkit.data.tokeniser import train_tokeniser
from tfkit.data.tokeniser_file import MAX_IDS, MAX_PIECE, STEPS, WordLevel
from tfkit.files import TOKENISER_BYTES
from tfkit.plugin import Component
from tfkit.recipe.parts import PARTS

TEXT = ["Ein Mann geht, ein Hund läuft.", "Zwei Hunde laufen im Gras!", "Der Mann und der Hund."] * 3


def made(kind, size=400, sentences=True, texts=TEXT, **options):
    entry = next(entry for entry in PARTS["tokeniser"] if entry.name == kind)
    return train_tokeniser(Component(entry, entry.options(**options)), texts, size, sentences)


MADE = {kind: json.loads(made(kind).to_json()) for kind in ("bpe", "unigram", "characters")}
EVERY = [
    made(kind, normalise=normalise, lowercase=lowercase, sentences=sentences).to_json()
    for kind in MADE
    for normalise in ("none", "nfc", "nfkc")
    for lowercase in (False, True)
    for sentences in (False, True)
]


def test_every_step_that_is_accepted_is_one_of_a_tokeniser_that_tfkit_makes():
    used = {part: [] for part in STEPS}
    for text in EVERY:
        for part in STEPS:
            steps = json.loads(text)[part]
            used[part] += next((each for each in steps.values() if isinstance(each, list)), [steps])
        assert TextTokeniser.from_json(text, "again").to_json() == text
    for part, steps in STEPS.items():
        assert all(step in used[part] for step in steps)


def changed(kind, path, value):
    """A tokeniser in which one value is another; `path` has dots."""
    data = copy.deepcopy(MADE[kind])
    *places, last = [int(place) if place.isdigit() else place for place in path.split(".")]
    node = data
    for place in places:
        node = node[place]
    node[last] = value
    return json.dumps(data)


def replace(pattern, content=" "):
    return {"type": "Replace", "pattern": pattern, "content": content}


SLOW = replace({"Regex": "(x+x+)+y"})
BOMB = replace({"String": "a"}, "a" * 1000)
PIECES = list(MADE["bpe"]["model"]["vocab"])
HOSTILE = {
    "slow normaliser": ("bpe", "normalizer", SLOW, 'normalizer, step 1: {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}'),
    "slow among others": ("bpe", "normalizer.normalizers.1", SLOW, "normalizer, step 2: "),
    "replacements that grow": ("unigram", "normalizer.normalizers.2", BOMB, "normalizer, step 3: "),
    "many steps": ("bpe", "normalizer.normalizers", [{"type": "NFKC"}] * 9, "there are 9 steps, at most 8 are allowed"),
    "sequence within": ("bpe", "normalizer.normalizers.0", {"type": "Sequence", "normalizers": []}, "step 1: "),
    "sequence of nothing": ("bpe", "normalizer", {"type": "Sequence"}, "a Sequence has a list of `normalizers`"),
    "slow split": (
        "bpe", "pre_tokenizer.pretokenizers.1.pattern", {"Regex": "(x+x+)+y"}, "pre_tokenizer, step 2: ",
    ),
    "decoder that grows": ("bpe", "decoder.decoders.0.content", "a" * 10**6, "decoder, step 1: "),
    "slow decoder": ("bpe", "decoder", SLOW, "decoder, step 1: "),
    "decoder of strip": ("bpe", "decoder.decoders.3.start", 10**9, "decoder, step 4: "),
    "no object": ("bpe", "normalizer", [], "normalizer: Input should be a valid dictionary"),
    "post processor": ("bpe", "post_processor", {"type": "ByteLevel"}, "post_processor: Input should be None"),
    "padding": ("bpe", "padding", {"strategy": {"Fixed": 10**9}}, "padding: Input should be None"),
    "truncation": ("bpe", "truncation", {"max_length": 1}, "truncation: Input should be None"),
    "unknown key": ("bpe", "more", 1, "more: Extra inputs are not permitted"),
    "model kind": ("bpe", "model", {"type": "WordPiece"}, 'model: the type is "WordPiece", known are BPE, Unigram, WordLevel'),
    "model kind that is a list": ("bpe", "model", {"type": ["BPE"]}, 'model: the type is ["BPE"], known are'),
    "dropout": ("bpe", "model.dropout", 0.5, "model.dropout: Input should be None"),
    "huge id": ("bpe", "model.vocab.<unk>", 2**31, "each once; \"<unk>\" has 2147483648"),
    "negative id": ("bpe", "model.vocab.<unk>", -1, '"<unk>" has -1'),
    "id twice": ("bpe", "model.vocab.<unk>", 2, "each once; "),
    "id that is a text": ("bpe", "model.vocab.<unk>", "3", "model.vocab.<unk>: Input should be a valid integer"),
    "id that is true": ("bpe", "model.vocab.<unk>", True, "model.vocab.<unk>: Input should be a valid integer"),
    "vocabulary that is a list": ("bpe", "model.vocab", [["a", 1]], "model.vocab: Input should be a valid dictionary"),
    "long piece": (
        "bpe", "model.vocab", {**MADE["bpe"]["model"]["vocab"], "x" * (MAX_PIECE + 1): len(PIECES)}, "at most 256 characters",
    ),
    "merge of three": ("bpe", "model.merges.0", ["a", "b", "c"], "model.merges.0: List should have at most 2 items"),
    "very many merges": ("bpe", "model.merges", [["a", "b"]] * 9_999, "there are 9,999 merges for "),
    "merge without its product": (
        "bpe", "model.merges.0", ["<unk>", "<unk>"], "needs \"<unk><unk>\", which the vocabulary lacks",
    ),
    "merge of unknown tokens": ("bpe", "model.merges.0", ["qq", "zz"], 'and "zz" needs "qq", which the vocabulary lacks'),
    "other specials": ("bpe", "added_tokens.2.content", "<end>", 'added_tokens: ["<pad>", "<s>", "<end>", "<unk>"], tfkit\'s'),
    "specials missing": ("bpe", "added_tokens", [], "added_tokens: [], tfkit's are <pad>, <s>, </s>, <unk>"),
    "special that is text": ("bpe", "added_tokens.0.normalized", True, "added_tokens.0.normalized: Input should be False"),
    "specials elsewhere": ("unigram", "model.vocab.0.0", "<pod>", 'model.vocab: the first pieces are ["<pod>", "<s>"'),
    "unigram piece twice": ("unigram", "model.vocab.7.0", "<unk>", 'model.vocab.7: the piece "<unk>" is repeated'),
    "unigram long piece": ("unigram", "model.vocab.9.0", "x" * 300, "model.vocab.9: a piece is a text of 1 to 256 characters"),
    "unigram score": ("unigram", "model.vocab.9.1", "1", 'model.vocab.9: a score is a number, "1" is written'),
    "unigram without scores": ("unigram", "model.vocab.9", ["a"], "model.vocab.9: List should have at least 2 items"),
    "unknown id": ("unigram", "model.unk_id", 9, "model.unk_id: Input should be 3"),
    "characters": ("characters", "model.vocab.<unk>", 10**6, "each once; "),
    "slow characters": ("characters", "pre_tokenizer.pattern.Regex", "(x+x+)+y", "pre_tokenizer, step 1: "),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "value", "message"), HOSTILE.values(), ids=HOSTILE)
def test_foreign_tokeniser_parts_are_refused_with_their_place(tmp_path, kind, path, value, message):
    (tmp_path / "tokeniser.json").write_text(changed(kind, path, value))
    with pytest.raises(InputError) as caught:
        TextTokeniser.load(tmp_path / "tokeniser.json")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "TFK104"
    assert diagnostic.message.startswith(f"{tmp_path / 'tokeniser.json'} holds no tokeniser")
    assert message in diagnostic.message
    assert len(diagnostic.message) < 400


def test_a_value_of_the_file_cannot_write_on_the_terminal(tmp_path):
    hostile = json.dumps(copy.deepcopy(MADE["bpe"]) | {"\x1b]0;title\x07": 1, "normalizer": {"type": "\x1b[31m"}})
    for text in (hostile, changed("bpe", "normalizer", {"type": "\x1b[31m\n"})):
        with pytest.raises(InputError) as caught:
            TextTokeniser.from_json(text, "t")
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested more than 40 deep"),
        ('{"version": NaN}', "NaN is not a number of JSON"),
        ('{"model": {}, "model": {}}', 'the key "model" is repeated'),
        (changed("unigram", "model.vocab.9.1", 0.5).replace("0.5", "1e999"), "1e999 is larger than any number"),
        (changed("unigram", "model.vocab.9.1", 10**400), "an integer has 401 digits, and at most 308 are read"),
        (changed("bpe", "normalizer", None)[:-20], "it is not valid JSON"),
        (changed("bpe", "model.merges", []).replace("<unk>", "\\ud800", 1), "a string has a lone surrogate"),
    ],
    ids=["deep", "nan", "twice", "infinite", "large", "cut off", "surrogate"],
)
def test_invalid_json_is_refused(text, message):
    with pytest.raises(InputError, match=f"TFK104 t holds no tokeniser.*{re.escape(message)}"):
        TextTokeniser.from_json(text, "t")


@pytest.mark.slow
def test_a_vocabulary_has_a_limit():
    vocab = {str(number): number for number in range(MAX_IDS + 1)}
    with pytest.raises(ValidationError, match="Dictionary should have at most 500000 items"):
        WordLevel.model_validate({"type": "WordLevel", "unk_token": "<unk>", "vocab": vocab})


def test_the_file_is_a_regular_one_of_a_bounded_size(tmp_path):
    (tmp_path / "device.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(TOKENISER_BYTES + 1)
    reasons = {"device": "it is a link", "pipe": "it is a named pipe", "large": f"it has more than {TOKENISER_BYTES:,} bytes"}
    for name, reason in reasons.items():
        with pytest.raises(InputError, match=f"TFK104 .*{name}.json cannot be read: {reason}"):
            TextTokeniser.load(tmp_path / f"{name}.json", links=False)
    with pytest.raises(InputError, match=r"TFK104 .*device.json cannot be read: it is a device"):
        TextTokeniser.load(tmp_path / "device.json")


def test_a_panic_of_the_library_is_an_error(capfd):
    """A regular expression that gives up makes the library panic, with an exception that `except Exception` does not catch."""
    tokeniser = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1}, unk_token="<unk>"))
    tokeniser.normalizer = normalizers.Replace(Regex("(x+x+)+y"), "")
    with pytest.raises(InputError, match=r"TFK104 the tokeniser failed on a text: the library of tokenisers panicked$"):
        TextTokeniser(tokeniser, TextBounds(None)).encode(["x" * 40])
    capfd.readouterr()


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_no_learned_piece_exceeds_the_limit_of_the_reader(kind):
    texts = ["ab" * 2_000, *TEXT] * 3
    tokeniser = made(kind, 600, texts=texts)
    pieces = tokeniser.pieces(range(tokeniser.size))
    assert max(map(len, pieces)) <= MAX_PIECE
    assert TextTokeniser.from_json(tokeniser.to_json(), "again").encode(texts) == tokeniser.encode(texts)
