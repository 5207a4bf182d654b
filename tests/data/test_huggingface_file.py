"""A tokeniser file of Hugging Face that means harm is refused with the place of the fault, and never hangs or crashes."""

from __future__ import annotations

import base64
import copy
import io
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from pydantic import ValidationError
from tokenizers import Regex, pre_tokenizers

from hostile_files import REPLACED
from huggingface_tokenisers import CORPUS, MADE, config
from tfkit import InputError
from tfkit.data import TextTokeniser, read_huggingface
from tfkit.data.huggingface_file import AddedToken
from tfkit.data.huggingface_steps import SPLITS
from tfkit.data.sentencepiece_file import parse_sentencepiece

SLOW = {"Regex": "(x+x+)+y"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What tfkit saves of some tokenisers."""
    found = {}
    for name in ("bert", "gpt2", "t5"):
        place = tmp_path_factory.mktemp(name)
        MADE[name](place).save_pretrained(place)
        found[name] = json.loads(read_huggingface(place, 2000)["tokeniser.json"])
    return found


def table(*replacements: bytes, size: int = 4) -> str:
    return base64.b64encode(size.to_bytes(4, "little") + bytes(4) + b"\0".join(replacements)).decode()


def replace(pattern: Any, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*steps: Any) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


SPLIT = {"type": "Split", "pattern": SLOW, "behavior": "Isolated", "invert": False}
TEMPLATE = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
HOSTILE: dict[str, tuple[str, str, Any, str]] = {
    "slow normaliser": ("bert", "normalizer", replace(SLOW, ""), "normalizer, step 1, Replace: pattern: tfkit does not run"),
    "slow split": ("gpt2", "pre_tokenizer", SPLIT, "pre_tokenizer, step 1, Split: pattern: tfkit does not run"),
    "slow decoder": ("bert", "decoder", replace(SLOW, ""), "decoder, step 1, Replace: pattern"),
    "empty pattern": ("bert", "normalizer", replace({"String": ""}, "a"), "pattern.String: String should have at least 1"),
    "growth": (
        "bert", "normalizer", sequence(*[replace({"String": "a"}, "aaaa")] * 8), "a text up to 65,536 times as long",
    ),
    "doubled ten times": (
        "bert", "normalizer", sequence(*[replace({"String": "a"}, "aa")] * 10), "replacements make a text up to 1,024 times",
    ),
    "growth after NFKC": (
        "bert", "normalizer", sequence({"type": "NFKC"}, replace({"String": "a"}, "a" * 64)), "text up to 1,152 times as long",
    ),
    "many steps": ("bert", "normalizer", sequence(*[{"type": "NFC"}] * 17), "there are more than 16 steps"),
    "nested": ("bert", "normalizer", sequence(sequence()), "a Sequence has no Sequence inside"),
    "unknown step": ("bert", "pre_tokenizer", {"type": "FixedLength", "length": 0}, "is none of BertPreTokenizer, Whitespace"),
    "unknown option": ("bert", "pre_tokenizer", {"type": "BertPreTokenizer", "more": 1}, "more: Extra inputs are not"),
    "type that is a list": ("bert", "decoder", {"type": ["CTC"]}, "decoder, step 1: "),
    "decoder CTC": ("bert", "decoder", {"type": "CTC"}, 'decoder, step 1: {"type": "CTC"} is none of WordPiece, ByteLevel'),
    "long charsmap": ("t5", "normalizer.precompiled_charsmap", table(b"a" * 300), "a character becomes more than 256 bytes"),
    "charsmap cut": ("t5", "normalizer.precompiled_charsmap", table(size=99), "the table of characters is damaged"),
    "no charsmap": ("t5", "normalizer.precompiled_charsmap", "", "it is empty"),
    "charsmap text": ("t5", "normalizer.precompiled_charsmap", "?", "it is not base64"),
    "charsmap padded": ("t5", "normalizer.precompiled_charsmap", "AAAA==", "it is not base64"),  # Python reads it, Rust panics
    "template id": ("bert", "post_processor.special_tokens.[CLS].ids", [10**6], "post_processor: no token has the id 1000000"),
    "template order": (
        "bert", "post_processor.pair", [{"Sequence": {"id": "B", "type_id": 0}}], "each text once, and the first one first",
    ),
    "template token": ("bert", "post_processor.single", [TEMPLATE], "a template has each text once"),
    "model": ("bert", "model.type", "Neural", 'the type is "Neural", known are BPE, WordPiece, Unigram, WordLevel'),
    "long words": ("bert", "model.max_input_chars_per_word", 10**9, "max_input_chars_per_word: Input should be less than"),
    "huge id": ("bert", "model.vocab.[PAD]", 2**31, 'added_tokens: "[PAD]" has the ids 2147483648 and 0'),
    "id twice": ("bert", "model.vocab.[PAD]", 1, 'added_tokens: "[PAD]" has the ids 1 and 0'),
    "dropout": ("gpt2", "model.dropout", 0.5, "model.dropout: Input should be None"),
    "merge": ("gpt2", "model.merges", [["a"]], "model.merges.0: List should have at least 2 items"),
    "very many merges": ("gpt2", "model.merges", [["a", "b"]] * 99_999, "there are 99,999 merges for "),
    "merge of nothing": ("gpt2", "model.merges", [["qq", "zz"]], 'of "qq" and "zz" needs "qq", which the vocabulary lacks'),
    "unknown id": ("t5", "model.unk_id", 10**6, "no piece has the id 1000000"),
    "added id": ("bert", "added_tokens.0.content", "<new>", '"[PAD]" and "<new>" have the id 0'),
    "padding": ("bert", "padding", {"strategy": {"Fixed": 10**9}}, "padding: Input should be None"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_harmful_part_is_refused_with_its_place(case: str, files: dict[str, Any]) -> None:
    name, path, value, message = HOSTILE[case]
    data = copy.deepcopy(files[name])
    node = data["tokenizer"]
    *places, last = [int(place) if place.isdigit() else place for place in path.split(".")]
    for place in places:
        node = node[place]
    node[last] = value
    with pytest.raises(InputError) as caught:
        TextTokeniser.from_json(json.dumps(data), "t.json")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, message in diagnostic.message) == ("TFK104", True), diagnostic.message
    assert len(diagnostic.message) < 500
    assert diagnostic.message.isprintable()


@pytest.mark.parametrize("value", [None, {}, 7])
def test_another_type_at_any_place_is_an_error_or_changes_nothing(value: Any, files: dict[str, Any]) -> None:
    for data in files.values():
        for part in [
            *data,
            *(f"tokenizer.{key}" for key in data["tokenizer"]),
            *(f"tokenizer.model.{key}" for key in data["tokenizer"]["model"]),
        ]:
            changed = copy.copy(data)
            node = changed
            *places, last = part.split(".")
            for place in places:
                node[place] = copy.copy(node[place])
                node = node[place]
            node[last] = value
            try:
                TextTokeniser.from_json(json.dumps(changed), "t.json").encode(["a b"])
            except InputError:
                continue


@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "spiece.model", "vocab.txt"]
)
def test_a_replaced_file_is_an_error(name: str, how: str, tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    config(place, {"vocab.json": "gpt2", "merges.txt": "gpt2", "spiece.model": "t5"}.get(name, "bert"))
    (place / "vocab.json").write_text('{"a": 0}')
    if name in ("vocab.json", "merges.txt"):
        (place / "merges.txt").write_text("")
    (place / name).write_text("{}")
    REPLACED[how](place / name)
    if how in ("link", "bytes") or (name.endswith(("txt", "config.json")) and how not in ("directory", "named pipe", "sparse")):
        return  # a link is followed, and any text is a list of words
    with pytest.raises(InputError, match=r"TFK10[46]"):
        read_huggingface(place, 100)


def test_damaged_sentencepiece_models_are_errors_or_other_models() -> None:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=written, vocab_size=120, hard_vocab_limit=False, minloglevel=2,
        normalization_rule_name="identity", num_threads=1,
    )  # fmt: skip
    content, draw = written.getvalue(), random.Random(1)
    refused = 0
    for number in range(900):
        damaged = bytearray(content)
        at = draw.randrange(len(content))
        damaged[at] = draw.randrange(256)
        try:
            parse_sentencepiece(bytes(damaged[: at if number % 3 == 0 else None]))
        except ValueError:
            refused += 1
    assert 300 < refused < 870


def test_a_damaged_table_of_characters_is_an_error_or_another_table(files: dict[str, Any], capfd: Any) -> None:
    """The library stops at a damaged trie with a panic."""
    good = base64.b64decode(files["t5"]["tokenizer"]["normalizer"]["precompiled_charsmap"])
    draw = random.Random(2)
    for _ in range(12):
        damaged = bytearray(good)
        for _ in range(2000):
            damaged[draw.randrange(4, 60_000)] = draw.randrange(256)
        data = copy.deepcopy(files["t5"])
        data["tokenizer"]["normalizer"]["precompiled_charsmap"] = base64.b64encode(damaged).decode()
        try:
            TextTokeniser.from_json(json.dumps(data), "t.json").encode(CORPUS[:11])
        except InputError:
            continue
    capfd.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize("pattern", sorted(SPLITS), ids=range(len(SPLITS)))
def test_the_time_of_a_split_is_linear(pattern: str) -> None:
    """Processor time: 16 times the text needs less than 100 times as much; a quadratic search needs 256 times as much."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    for text in (" ", "a", "A", "1", "'", " \n", "日", "'S ", "\u0301", "!\n"):
        for chance in (1, 2, 3):  # something else may have disturbed a measurement
            short, long = (_seconds(split, text * count) for count in (4_000, 64_000))
            if long < 100 * short + 0.05:
                break
            assert chance < 3, (text, short, long)


def _seconds(split: Any, text: str) -> float:
    start = time.process_time()
    split.pre_tokenize_str(text)
    return time.process_time() - start


LINES = 300_001


@pytest.mark.parametrize("place", ["model.vocab", "model.vocab.5.0", "added_tokens.0.content", "model.type", "model"])
@pytest.mark.parametrize("value", [7, {"a": 1}, [[]]], ids=json.dumps)
def test_values_of_another_type_are_errors(place: str, value: Any, tmp_path: Path) -> None:
    MADE["t5"](tmp_path).save_pretrained(tmp_path)
    data = at = json.loads((tmp_path / "tokenizer.json").read_text())
    *keys, last = (int(key) if key.isdigit() else key for key in place.split("."))
    for key in keys:
        at = at[key]
    at[last] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"TFK104 .*holds no tokeniser that tfkit runs"):
        read_huggingface(tmp_path, 2000)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab.txt": "\n" * LINES}, r"vocab\.txt.*it has 300,001 lines, and at most 300,000 are read"),
        ({"vocab.json": '{"t": 0}', "merges.txt": "t h\n" * LINES}, r"merges\.txt.*it has 300,001 lines"),
        (
            {"vocab.json": json.dumps(dict.fromkeys(map(str, range(LINES)), 0)), "merges.txt": ""},
            r"vocab\.json .*more than 300,000 values",
        ),
        (
            {"vocab.json": '{"a": 0, "b": 1}', "merges.txt": "#version: 0.2\na b\n"},
            r'vocab\.json holds no .*: model: the merge of "a" and "b" needs "ab", which the vocabulary lacks',
        ),
        ({"vocab.json": f"{{{' ' * (1 << 24)}}}", "merges.txt": ""}, r"vocab\.json cannot be read: .* than 16,777,216 bytes"),
        (
            {"tokenizer.json": json.dumps({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 5_000}})},
            r"tokenizer\.json holds no .*: decoder: it has more than 10,000 values",
        ),
    ],
)
def test_files_of_pieces_are_bounded(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, text in {"tokenizer_config.json": "{}", "config.json": '{"model_type": "gpt2"}', **files}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_huggingface(tmp_path, 100)


def test_a_token_of_white_space_does_not_take_that_beside_it() -> None:
    """A text of blanks took quadratic time and memory: each matched and took all that follow."""
    token = {"id": 1, "content": " ", "single_word": False, "lstrip": False, "normalized": False, "special": False}
    assert AddedToken.model_validate({**token, "rstrip": False})
    with pytest.raises(ValidationError, match="a token of white space cannot take the white space beside it"):
        AddedToken.model_validate({**token, "rstrip": True})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x20\x01" * 600_001, "a message has more than 600,000 fields"),
        (b"\x0a\xca\x01" + b"\x20\x01" * 101, "a message has more than 100 fields"),
        (b"\x12\x02\x18\x01" * 2, "it has two of a part that a model has once"),
        (b"\x0a\x89\x02\x0a\x81\x02" + b"a" * 257 + b"\x15" + bytes(4), "piece 0 has 257 characters, and at most 256 are read"),
    ],
    ids=["fields", "fields of a piece", "two trainers", "a long piece"],
)
def test_fields_of_a_sentencepiece_model_are_bounded(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_sentencepiece(data)


def test_a_missing_vocabulary_is_said_to_be_missing(tmp_path):
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(InputError) as raised:
        read_huggingface(tmp_path, 100)
    assert str(raised.value) == f"TFK104 {tmp_path / 'vocab.json'} cannot be read: No such file or directory"
