"""The tokeniser of BLEU, chosen by the script of the reference or named, in `score` and in training."""

import json
from pathlib import Path

import pytest

import huggingface_tokenisers
from command_line import tfkit
from tfkit import BuildError, InputError, TfkitError, corpus_scores, load_recipe
from tfkit.metrics import TOKENISERS
from tfkit.train import train
from translation_task import write_task

__all__ = ["tfkit"]
LINES = {
    "zh": "新的一天开始了，我们去学校。",
    "ja": "国境の長いトンネルを抜けると雪国であった。",
    "th": "สวัสดีครับผมชื่อสมชาย",
    "km": "ខ្ញុំចង់ទៅសាលារៀន",
    "my": "မင်္ဂလာပါ ခင်ဗျာ",
    "lo": "ສະບາຍດີຕອນເຊົ້າ",
    "bo": "བཀྲ་ཤིས་བདེ་ལེགས།",
}


def token(scores):
    return next(part for part in scores["bleu"].signature.split("|") if part.startswith("tok:"))


@pytest.mark.parametrize("language", LINES)
def test_a_text_without_spaces_equals_itself(language):
    lines = [LINES[language], f"{LINES[language]} {LINES[language]}"]
    scores = corpus_scores(lines, lines)
    assert scores["bleu"].value == pytest.approx(100)
    assert token(scores) == ("tok:zh" if language == "zh" else "tok:char")


@pytest.mark.parametrize(
    ("line", "chosen"),
    [
        ("The dog runs in the garden.", "13a"),
        ("나는 오늘 학교에 갔다.", "13a"),
        ("Я видел собаку.", "13a"),
        ("He said 你好 to the old man in the garden.", "13a"),
        ("使用 PyTorch 训练 Transformer 模型", "zh"),
        ("", "13a"),
        ("1234 !", "13a"),
    ],
)
def test_the_script_of_the_reference_chooses(line, chosen):
    assert token(corpus_scores(["x"], [line])) == f"tok:{chosen}"


def test_a_named_tokeniser_is_used():
    assert token(corpus_scores([LINES["zh"]], [LINES["zh"]], "13a")) == "tok:13a"
    with pytest.raises(InputError, match="TFK078 there is no BLEU tokeniser `zn`; known: 13a, intl, zh, char"):
        corpus_scores(["a"], ["a"], "zn")


@pytest.fixture
def empty_home(tmp_path, monkeypatch):
    """The directory of sacrebleu's files is that of the test."""
    for module in ("utils", "tokenizers.tokenizer_spm"):
        monkeypatch.setattr(f"sacrebleu.{module}.SACREBLEU_DIR", str(tmp_path))


@pytest.mark.parametrize("name", ["flores200", "flores101", "spm"])
def test_pieces_are_used_where_their_file_is_installed(name, empty_home, tmp_path):
    """Nothing is fetched from the network."""
    with pytest.raises(BuildError, match=rf"TFK097 sacrebleu's tokeniser `{name}` needs .*, which is not there; `sacrebleu"):
        corpus_scores(["a dog"], ["a dog"], name)
    file = "flores200sacrebleuspm" if name == "flores200" else "sacrebleu_tokenizer_spm.model"
    huggingface_tokenisers.pieces(tmp_path / "models" / file)
    scores = corpus_scores(["a dog runs over the bridge"], ["a dog runs over the bridge"], name)
    assert scores["bleu"].value == pytest.approx(100)
    assert token(scores) == ("tok:flores200" if name == "flores200" else "tok:flores101")


@pytest.mark.parametrize("name", [name for name in TOKENISERS if name.endswith("mecab")])
def test_a_dictionary_that_is_not_installed(name, monkeypatch):
    monkeypatch.setattr(f"sacrebleu.tokenizers.tokenizer_{name.replace('-', '_')}.MeCab", None)
    with pytest.raises(BuildError, match=rf"TFK097 sacrebleu's tokeniser `{name}` .*sacrebleu\[{name[:2]}\]"):
        corpus_scores(["a"], ["a"], name)


def test_score_chooses_and_names_the_tokeniser(tfkit, tmp_path: Path):
    (tmp_path / "zh").write_text(LINES["zh"] + "\n")
    done = tfkit("score", tmp_path / "zh", tmp_path / "zh")
    assert "BLEU             100.00  nrefs:1|case:mixed|eff:no|tok:zh|" in done.out
    assert "|tok:13a|" in tfkit("score", tmp_path / "zh", tmp_path / "zh", "--tokenise", "13a").out


def written_without_spaces(folder: Path) -> Path:
    """A recipe whose target has a character for each word, and no space."""
    recipe = write_task(folder)
    lines = [line.split() for line in (folder / "train.trg").read_text().splitlines()]
    numbers = {word: chr(0x4E00 + number) for number, word in enumerate(sorted({word for line in lines for word in line}))}
    (folder / "train.trg").write_text("".join("".join(numbers[word] for word in line) + "\n" for line in lines))
    return recipe


@pytest.mark.parametrize(("settings", "chosen"), [("{metric: bleu}", "zh"), ("{metric: chrf, tokenise: char}", "char")])
def test_validation_has_a_tokeniser(settings, chosen, tmp_path, capsys):
    train(load_recipe(written_without_spaces(tmp_path), [f"validation={settings}", "stopping.max_steps=2"]), tmp_path / "run")
    entries = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    (signatures,) = [entry["signatures"] for entry in entries if entry["kind"] == "validation"]
    assert f"|tok:{chosen}|" in signatures["bleu"]


def test_training_prints_another_tokeniser_than_13a(tfkit, tmp_path):
    changes = ["--set", "validation.metric=bleu", "--set", "stopping.max_steps=1"]
    done = tfkit("train", written_without_spaces(tmp_path), "-o", tmp_path / "run", *changes)
    assert ", BLEU 0.00 (zh), lowercase BLEU 0.00 (zh), chrF2 " in done.err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{metric: bleu, tokenise: nope}", r"TFK021 validation.tokenise: .*`nope` is written"),
        ("{metric: loss, tokenise: zh}", r"TFK108 .*validation.tokenise: nothing is translated for the metric `loss`"),
        ("{metric: bleu, tokenise: flores200}", r"TFK097 .*validation.tokenise: sacrebleu's tokeniser `flores200` needs"),
    ],
)
def test_a_tokeniser_that_cannot_be_used_is_refused_before_the_first_step(settings, message, empty_home, tmp_path):
    with pytest.raises(TfkitError, match=message):
        train(load_recipe(write_task(tmp_path), [f"validation={settings}"]), tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoints/*"))
