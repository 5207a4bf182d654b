"""Shortlists of a translator: learnt, saved, exchanged as vocabulary maps of CTranslate2, and refused where they do not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tfkit
from command_line import Done
from tfkit import InputError, Search, Shortlist, StoreError, Translator
from tfkit.data.tokeniser import TextTokeniser, train_tokeniser
from tfkit.interop.ctranslate2 import write
from tfkit.io.saved_files import other_files
from tfkit.text import model_in
from tfkit.text.lexical_table import lexical_table, likeliest
from tfkit.text.shortlist import SHORTLIST
from translation_task import WORDS, sentences

pytestmark = pytest.mark.xdist_group("translator")
LINES = [source for source, _ in sentences(12, seed=5)]
EACH = [Search(kind="greedy"), Search(beams=3, n_best=2)]


@pytest.fixture(scope="module")
def copied(trained: Path, tmp_path_factory: Any) -> Path:
    """The run without a shortlist, and its text."""
    folder = tmp_path_factory.mktemp("shortlist") / "run"
    shutil.copytree(model_in(trained), folder)
    return folder


@pytest.fixture(scope="module")
def tokenisers(copied: Path) -> dict[str, TextTokeniser]:
    return dict(Translator.load(copied).tokenisers)


@pytest.fixture(scope="module")
def learnt(trained: Path, tokenisers: dict[str, TextTokeniser]) -> Shortlist:
    text = trained.parent
    return Shortlist.learn(tokenisers, text / "train.src", text / "train.trg", per_token=8, frequent=3)


def by_loops(pairs: list[tuple[list[int], list[int]]], iterations: int) -> dict[tuple[int, int], float]:
    """t(t|s) of IBM model 1, with the empty token -1."""
    table: dict[tuple[int, int], float] = {}
    for number in range(iterations):
        counts: dict[tuple[int, int], float] = {}
        for source, target in pairs:
            for t in target:
                total = sum(table.get((s, t), 0.0) for s in [-1, *source]) if number else len(source) + 1.0
                for s in [-1, *source]:
                    share = table.get((s, t), 0.0) if number else 1.0
                    counts[s, t] = counts.get((s, t), 0.0) + share / total
        sums: dict[int, float] = {}
        for (s, _), count in counts.items():
            sums[s] = sums.get(s, 0.0) + count
        table = {(s, t): count / sums[s] for (s, t), count in counts.items()}
    return table


def test_the_table_is_that_of_ibm_model_1(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tfkit.text.lexical_table.CHUNK", 40)  # several chunks
    draw = np.random.default_rng(0)
    pairs = [(draw.integers(0, 9, n).tolist(), draw.integers(0, 7, m).tolist()) for n, m in draw.integers(1, 6, (30, 2))]
    pairs.insert(3, ([], [1]))
    pairs.insert(5, ([1], []))
    keys, probabilities, frequencies = lexical_table(lambda: pairs, 9, 7, 4)
    wanted = by_loops([pair for pair in pairs if pair[0] and pair[1]], 4)
    got = {(int(key) // 7, int(key) % 7): value for key, value in zip(keys, probabilities, strict=True)}
    assert got == pytest.approx({(9 if s < 0 else s, t): value for (s, t), value in wanted.items()}, abs=1e-12)
    assert frequencies.tolist() == [sum(t.count(n) for s, t in pairs if s) for n in range(7)]
    ends, targets = likeliest(keys, probabilities, 9, 7, 3)
    for s in range(9):
        best = sorted((-value, t) for (one, t), value in wanted.items() if one == s and value > 0)[:3]
        assert targets[ends[s] : ends[s + 1]].tolist() == sorted(t for _, t in best)


def test_a_table_has_at_most_so_many_pairs():
    pairs = [([0, 1], [0]), ([0], [0]), ([1], [2])] * 3
    keys, _, _ = lexical_table(lambda: pairs, 2, 3, 2, max_entries=3)
    assert len(keys) == 3
    assert 0 in keys  # the pair (0, 0) is the likeliest


def test_it_learns_the_translations_of_words(learnt: Shortlist, tokenisers: dict[str, TextTokeniser]):
    right = 0
    for source, target in WORDS.items():
        [ids], [wanted] = tokenisers["source"].encode([source]), tokenisers["target"].encode([target])
        right += {*wanted} <= {*learnt.of([ids])[0].tolist()}
    assert right >= 12
    sizes = [len({*ids.tolist()}) for ids in learnt.of([tokenisers["source"].encode([line])[0] for line in LINES])]
    assert max(sizes) < tokenisers["target"].size // 2


@pytest.mark.parametrize("search", EACH, ids=["greedy", "beams"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_translations_stay_and_have_ids_of_the_shortlist_only(copied: Path, learnt: Shortlist, search: Search, precision: str):
    try:
        plain = Translator.load(copied, search, precision=precision)
    except tfkit.BuildError:
        pytest.skip("not run: this processor has no int8 products")
    short = Translator.load(copied, search, precision=precision, shortlist=learnt)
    same = 0
    for before, after in zip(plain.translate(LINES), short.translate(LINES), strict=True):
        allowed = {*learnt.of([after.source_ids])[0].tolist()}
        assert all({*one.ids.tolist()} <= allowed for one in after.hypotheses)
        [alone] = short.translate([after.source])
        assert alone.texts == after.texts
        same += before.text == after.text
    assert same >= 10


def test_a_saved_one_is_read_as_it_was(copied: Path, learnt: Shortlist, tokenisers: dict[str, TextTokeniser], tmp_path: Path):
    learnt.save(tmp_path / "one")
    again = Shortlist.load(tmp_path / "one", tokenisers)
    assert [*again.map_lines()] == [*learnt.map_lines()]
    (tmp_path / "vmap.txt").write_text("".join(f"{line}\n" for line in learnt.map_lines()))
    imported = Shortlist.read_map(tokenisers, tmp_path / "vmap.txt")
    assert [*imported.map_lines()] == [*learnt.map_lines()]


def test_ctranslate2_finds_the_same_with_the_map(
    copied: Path, learnt: Shortlist, tokenisers: dict[str, TextTokeniser], tmp_path: Path
):
    """With a rule for an n-gram, and one sentence at a time: it gives all sentences of a batch the ids of all."""
    (tmp_path / "engine").mkdir()
    ngram = tuple(tokenisers["source"].encode([LINES[0]])[0][:2])
    wider = Shortlist(tokenisers, learnt.always, {**learnt.rows, ngram: [*range(8, 20)]})
    write(tfkit.load(copied), other_files(copied), tmp_path / "engine")
    (tmp_path / "engine" / "vmap.txt").write_text("".join(f"{line}\n" for line in wider.map_lines()))
    engine = ctranslate2.Translator(str(tmp_path / "engine"), device="cpu", compute_type="float32", intra_threads=1)
    names = {number: piece for piece, number in tokenisers["target"].vocabulary.items()}
    search = Search(beams=3, length_penalty=tfkit.PowerLengthPenalty(0.0), special_tokens=True)
    short = Translator.load(copied, search, shortlist=wider)
    for translation in short.translate(LINES):
        pieces = [names[number] for number in translation.source_ids[:-1]]
        [result] = engine.translate_batch(
            [pieces],
            beam_size=3,
            length_penalty=0.0,
            use_vmap=True,
            return_scores=True,
            min_decoding_length=0,
            max_decoding_length=60,
        )
        ids = translation.hypotheses[0].ids.tolist()
        assert result.hypotheses[0] == [names[number] for number in ids if number != 2]
        assert result.scores[0] == pytest.approx(translation.hypotheses[0].score, abs=1e-4)


def test_the_command_learns_imports_and_exports(
    trained: Path, copied: Path, tmp_path: Path, tfkit_command: Callable[..., Done], typed: Callable[[str], None]
):
    def translated() -> str:
        typed("\n".join(LINES) + "\n")
        done = tfkit_command("translate", place, "--shortlist")
        assert done.code == 0
        return done.out

    place, text = tmp_path / "run", trained.parent
    shutil.copytree(copied, place)
    files = [text / "train.src", text / "train.trg"]
    facts = tfkit_command("shortlist", place, *files, "--per-token", "2", "--frequent", "3", "--json").json()
    assert facts["file"] == str(place / SHORTLIST)
    assert 0 < facts["targets"] <= 3 * facts["rows"]  # the id itself is one more
    short = translated()
    assert short.count("\n") == len(LINES)
    exported = tmp_path / "vmap.txt"
    assert tfkit_command("shortlist", place, "--export", exported).code == 0
    before = exported.read_bytes()
    for wrong in (f"{tmp_path}/", exported):  # before anything is learnt
        refused = tfkit_command("shortlist", place, "--import", exported, "--force", "--export", wrong)
        assert refused.code == 2
        assert "TFK081" in refused.err
    assert exported.read_bytes() == before
    refused = tfkit_command("shortlist", place, "--import", exported)
    assert (refused.code, "--force" in refused.err) == (2, True)
    assert tfkit_command("shortlist", place, "--import", exported, "--force").code == 0
    assert translated() == short


def test_pairs_of_long_lines_are_left_out_and_counted(
    copied: Path, tokenisers: dict[str, TextTokeniser], tfkit_command: Callable[..., Done], tmp_path: Path
):
    """The time and the memory of a pair grow with the product of its lengths."""
    long, short, both = ([tmp_path / f"{name}.{side}" for side in ("src", "trg")] for name in ("long", "short", "both"))
    for at, words in enumerate(("the cat", "la la")):
        long[at].write_text(f"{words} " * 30_000 + "\n")
        short[at].write_text(f"{words}\n")
        both[at].write_text(short[at].read_text() + long[at].read_text())
    assert Shortlist.learn(tokenisers, *short).left_out == 0
    done = tfkit_command("shortlist", copied, *both, "--force")
    assert (done.code, done.err) == (0, "pairs with more than 1,000 tokens on a side, left out: 1\n")
    found, wanted = Shortlist.learn(tokenisers, *both), Shortlist.learn(tokenisers, *short)
    assert found.left_out == 1
    assert found.rows.keys() == wanted.rows.keys()
    with pytest.raises(InputError, match=r"long.src:1:1: TFK139 no pair of lines has 1 to 1,000 tokens on both sides"):
        Shortlist.learn(tokenisers, *long)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is nothing to learn from"),
        (["a"], "two files are read"),
        (["a", "b", "--import", "c"], "exclude each other"),
    ],
)
def test_what_to_learn_from_is_named(copied: Path, tfkit_command: Callable[..., Done], words: list[str], message: str):
    done = tfkit_command("shortlist", copied, *words)
    assert (done.code, message in done.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("▁the\t▁la\n▁the la\n", "vmap.txt:2:1: TFK139 the line has 0 tabs"),
        ("▁the\t▁la\t▁la\n", "vmap.txt:1:1: TFK139 the line has 2 tabs"),
        ("\t▁la\n▁qqq\t▁la\n", "vmap.txt:2:1: TFK139 '\\u2581qqq' is no token of the source"),
        ("▁the\t▁la ▁qqq\n", "vmap.txt:1:1: TFK139 '\\u2581qqq' is no token of the target"),
        ("▁the\t▁la\n▁the\t▁la\n", "vmap.txt:2:1: TFK139 the n-gram has a line already"),
        ("\t\n\t\n", "vmap.txt:2:1: TFK139 the n-gram has a line already"),
        ("", "vmap.txt:1:1: TFK139 a shortlist has no target tokens except special ones"),
        ("\t\n", "vmap.txt:1:1: TFK139 a shortlist has no target tokens except special ones"),
        ("▁the\t\n", "vmap.txt:1:1: TFK139 a shortlist has no target tokens except special ones"),
        ("\t<s> </s>\n", "vmap.txt:1:1: TFK139 a shortlist has no target tokens except special ones"),
        (" ".join(["▁the"] * 17) + "\t▁la\n", "vmap.txt:1:1: TFK139 n-gram of 17 tokens"),
    ],
)
def test_wrong_maps_are_refused_with_their_line(tokenisers: dict[str, TextTokeniser], tmp_path: Path, text: str, message: str):
    (tmp_path / "vmap.txt").write_text(text)
    with pytest.raises(InputError) as caught:
        Shortlist.read_map(tokenisers, tmp_path / "vmap.txt")
    assert message in str(caught.value)


def test_one_of_other_tokenisers_is_refused(
    trained: Path, copied: Path, learnt: Shortlist, tokenisers: dict[str, TextTokeniser], tmp_path: Path
):
    recipe = tfkit.load_recipe(trained.parent / "small-recipe.yaml", ["tokeniser={kind: characters}"])
    other = train_tokeniser(recipe.tokeniser, [*WORDS], 60)
    theirs = {"source": other, "target": other}
    with pytest.raises(InputError, match="TFK106"):
        Translator.load(copied, shortlist=Shortlist(theirs, [2], {(5,): [6]}))
    Shortlist(theirs, [2], {(5,): [6]}).save(copied / SHORTLIST)
    with pytest.raises(InputError, match=r"TFK106.*another tokeniser of the source"):
        Translator.load(copied, shortlist=True)
    (copied / SHORTLIST).unlink()
    with pytest.raises(StoreError, match="tfkit shortlist MODEL SOURCE TARGET"):
        Translator.load(copied, shortlist=True)


DAMAGES: dict[str, Any] = {
    "a tensor is missing": lambda tensors: tensors.pop("always"),
    "another dtype": lambda tensors: tensors.update(always=tensors["always"].long()),
    "another shape": lambda tensors: tensors.update(ngrams=tensors["ngrams"].flatten()),
    "ends fall": lambda tensors: tensors["ends"].__setitem__(0, 10**6),
    "an id beyond": lambda tensors: tensors["targets"].__setitem__(0, 10**6),
    "a negative id": lambda tensors: tensors["always"].__setitem__(0, -7),
    "an empty n-gram": lambda tensors: tensors["ngrams"].__setitem__(0, -1),
    "twice": lambda tensors: tensors["ngrams"].__setitem__(0, tensors["ngrams"][1].clone()),
    "ids for all again and again": lambda tensors: tensors.update(always=tensors["always"].repeat(1000)),
    "ids of a row again and again": lambda tensors: (
        tensors.update(targets=torch.cat([tensors["targets"], tensors["targets"][-1:].repeat(1000)])),
        tensors["ends"].__setitem__(-1, len(tensors["targets"])),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused(learnt: Shortlist, tokenisers: dict[str, TextTokeniser], tmp_path: Path, damage: str):
    learnt.save(tmp_path / "one")
    tensors = load_file(tmp_path / "one")
    DAMAGES[damage](tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "two")
    with pytest.raises(StoreError, match="TFK082"):
        Shortlist.load(tmp_path / "two", tokenisers)
    (tmp_path / "two").write_bytes(b"{")
    with pytest.raises(StoreError, match="TFK082"):
        Shortlist.load(tmp_path / "two", tokenisers)


def test_a_file_has_at_most_so_many_rows(
    learnt: Shortlist, tokenisers: dict[str, TextTokeniser], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Their number is compared before a tensor is read."""
    learnt.save(tmp_path / "one")
    monkeypatch.setattr("tfkit.text.shortlist.MAX_ROWS", 3)
    monkeypatch.setattr("tfkit.text.shortlist.load_file", None)
    with pytest.raises(StoreError, match=rf"TFK082.*{len(learnt.rows)} n-grams with .* target ids; at most 3 and "):
        Shortlist.load(tmp_path / "one", tokenisers)
    with pytest.raises(InputError, match="TFK139 a shortlist of 4 n-grams"):
        Shortlist(tokenisers, [2], {(n,): [3] for n in range(4)})


def test_a_source_has_each_id_once(tokenisers: dict[str, TextTokeniser], tmp_path: Path):
    one, other = ("▁the", "▁la")
    (tmp_path / "vmap.txt").write_text(f"{one}\t{f'{other} ' * 90}\n")
    read = Shortlist.read_map(tokenisers, tmp_path / "vmap.txt")
    [ids] = read.of([[tokenisers["source"].vocabulary[one]] * 50])
    assert ids.tolist() == sorted({*read.always.tolist(), tokenisers["target"].vocabulary[other]})


def test_lines_to_learn_from_are_read_in_groups_of_few_characters(
    tokenisers: dict[str, TextTokeniser], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "lines").write_text(f"{'x' * 900_000}\n" * 6)
    sizes: list[int] = []
    monkeypatch.setattr(TextTokeniser, "encode", lambda _, texts: sizes.append(len(texts)) or [[5]] * len(texts))
    Shortlist.learn(tokenisers, tmp_path / "lines", tmp_path / "lines", iterations=1)
    assert sizes == [1] * 12


def test_ids_of_no_vocabulary_are_refused(tokenisers: dict[str, TextTokeniser]):
    with pytest.raises(InputError, match="the id 9999 of the target"):
        Shortlist(tokenisers, [2], {(5,): torch.tensor([9999])})
    with pytest.raises(InputError, match="0 to 1 tokens"):
        Shortlist(tokenisers, [2], {(): [3], (4,): [3]})


def test_only_a_translator_has_a_shortlist(tmp_path: Path, tfkit_command: Callable[..., Done]) -> None:
    """The files of text do not exist: the model is refused before they are read."""
    for spec in ("gpt-char", "bert-classifier-small"):
        assert tfkit_command("build", spec, "-o", tmp_path / spec, "--set", "defaults.d_model=64").code == 0
        refused = tfkit_command("shortlist", tmp_path / spec, tmp_path / "no.en", tmp_path / "no.de")
        assert refused.code == 2
        assert "TFK107" in refused.err
        assert "is no model that translates" in refused.err
        assert not (tmp_path / spec / SHORTLIST).exists()


def test_a_model_is_replaced_with_its_shortlist(copied: Path, tmp_path: Path, tfkit_command: Callable[..., Done]) -> None:
    """One that stayed would be that of another tokeniser."""
    place = tmp_path / "model"
    shutil.copytree(model_in(copied), place)
    (place / SHORTLIST).write_bytes(b"old")
    assert tfkit_command("average", place, place, "-o", place, "--force").code == 0
    assert not (place / SHORTLIST).exists()
