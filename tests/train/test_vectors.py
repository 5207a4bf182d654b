"""Tables of tokens that start from word vectors, in both forms, against the files; wrong files."""

from __future__ import annotations

import gzip
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from kinds_task import recipe_for
from tfkit import InputError, SpecError, StoreError, build, load_recipe, load_spec
from tfkit.cli import main
from tfkit.data import Roles, read_tokenisers
from tfkit.recipe import recipe_of
from tfkit.train import resume, train
from tfkit.train.checkpoint import checkpoints_in, read_checkpoint
from tfkit.train.vectors import check_nodes, check_widths, load_vectors

WIDTH = 16
WORDS = ["the", "dog", "zebra", "old", "▁dog", "New York", "cat"]
STEPS = ["stopping.max_steps=1", "schedule={kind: constant, peak: 1.0e-9}", "validation.every_steps=1"]


def vector(word: str) -> list[float]:
    """Numbers that float32 holds."""
    return [len(word) + place / 8 + ord(word[0]) for place in range(WIDTH)]


def text(words: list[str] = WORDS) -> str:
    return "".join(f"{word} {' '.join(map(str, vector(word)))}\n" for word in words)


def binary(words: list[str] = WORDS) -> bytes:
    """As word2vec.c writes it."""
    rows = b"".join(word.encode() + b" " + struct.pack(f"<{WIDTH}f", *vector(word)) + b"\n" for word in words)
    return f"{len(words)} {WIDTH}\n".encode() + rows


FORMS = {
    "glove.txt": text().encode(),
    "header.vec": f"{len(WORDS)} {WIDTH}\n{text()}".encode(),
    "packed.txt.gz": gzip.compress(text().encode()),
    "w2v.bin": binary([word for word in WORDS if " " not in word]),  # a space ends a word
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose words start from a file beside its recipe."""
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "glove.txt").write_text(text())
    recipe = recipe_for(folder, "language")
    recipe.write_text(f"{recipe.read_text()}vectors: {{words: glove.txt}}\n")
    train(load_recipe(recipe, STEPS), folder / "run")
    return folder / "run"


def loaded(run: Path, file: Path) -> tuple[Any, Any, Any, Any]:
    """A new model with a file's vectors; its table before and after, its tokeniser, and the report."""
    model, tokenisers = build(load_spec(run / "spec.yaml"), seed=1), read_tokenisers(run, ("target",))
    before = model.nodes["words"].table().detach().clone()
    recipe = recipe_of(
        f"{{tfkit: 1, name: x, model: x.yaml, stopping: {{max_steps: 9}}, vectors: {{words: '{file}'}}}}", "r.yaml"
    )
    check_nodes(recipe, model)
    check_widths(recipe, model)
    [report] = load_vectors(model, recipe, Roles(None, "words", "out"), tokenisers)
    return before, model.nodes["words"].table(), tokenisers["target"], report


@pytest.mark.parametrize("name", FORMS)
def test_rows_of_known_words_are_those_of_the_file(name: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FORMS[name])
    before, after, tokeniser, report = loaded(run, tmp_path / name)
    matched = 0
    for number, piece in enumerate(tokeniser.pieces(range(tokeniser.size))):
        word = piece if piece in WORDS else piece.removeprefix("▁") if piece.startswith("▁") else ""
        matched += word in WORDS
        assert torch.equal(after[number], torch.tensor(vector(word)) if word in WORDS else before[number])
    assert (report.matched, report.rows, report.vectors) == (matched, tokeniser.size, len(WORDS) - name.endswith(".bin"))
    assert matched >= 3


def test_a_run_starts_from_them_and_reads_them_once(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = read_checkpoint(checkpoints_in(run / "checkpoints")[-1])[0]["model.safetensors"]
    known = read_tokenisers(run, ("target",))["target"].vocabulary["▁cat"]
    torch.testing.assert_close(tensors["nodes.words.embedding.weight"][known], torch.tensor(vector("cat")), rtol=0, atol=1e-5)
    file, words = run.parent / "glove.txt", ["--resume", str(run), "--set", "stopping.max_steps=2"]
    file.unlink()
    assert main(["train", *words]) == 0
    printed = capsys.readouterr().err
    assert "vectors:" not in printed
    assert f"TFK130 vectors.words: {file} is gone since this run began, whose tables start from it" in printed
    file.write_text(text(WORDS[:3]))
    shutil.copytree(run, tmp_path / "unstarted")
    shutil.rmtree(tmp_path / "unstarted" / "checkpoints")
    with pytest.raises(StoreError, match=r"TFK130 vectors\.words: .* has changed .*; start a new run"):
        resume(tmp_path / "unstarted")
    with pytest.raises(InputError, match=r"TFK111 .*`vectors`: the vectors were read at the start of the run"):
        resume(run, overrides=["vectors={words: other.txt}"])


ROW = text(["the"])
WRONG = {
    "narrow.txt": (b"the 1 2 3\n", r"narrow.txt:1:1: .*a word and 3 numbers, and the table has 16 features; name vectors of"),
    "wide.txt": (f"the 7 {ROW[4:]}".encode(), r"wide.txt(:1:1): .*a word and 17 numbers, and the table has 16"),
    "words.txt": (ROW.replace("5", "x", 1).encode() if "5" in ROW else b"", r"words.txt(:1:1): .*are not numbers"),
    "nan.txt": (f"the {' '.join(['nan'] * WIDTH)}\n".encode(), r"nan.txt(:1:1): .*holds NaN or infinity"),
    "underscores.txt": (f"the {' '.join(['1_0'] * WIDTH)}\n".encode(), r"underscores.txt(:1:1): .*are not numbers"),
    "script.txt": (("the" + " \u0661" * WIDTH + "\n").encode(), r"script.txt(:1:1): .*are not numbers"),
    "cut.vec": (f"99 {WIDTH}\n{text()}".encode(), rf"cut.vec:1:1: .*99 vectors are announced, and {len(WORDS)} follow"),
    "wide.vec": (f"{len(WORDS)} 9\n{text()}".encode(), r"its vectors have 9 features, and the table has 16"),
    "long.bin": (binary(WORDS[:3]) + b"more", r"more than the 3 vectors that are announced follow"),
    "other.txt": (text(["zebra"]).encode(), r"none of its 1 words is a piece of the vocabulary of `words`"),
    "latin.txt": (b"caf\xe9 1\n", r"TFK101 .*byte 0xe9 is no UTF-8"),
    "wide.bin": (b"3 300\n", r"its vectors have 300 features, and the table has 16"),
    "text.bin": (text().encode(), r"the first line is not the number of vectors"),
    "cut.bin": (binary(WORDS[:3])[:-30], r"vector 3 of 3 is not complete"),
    "none.txt": (None, r"TFK100 .*none.txt cannot be read: No such file"),
    "none.bin": (None, r"TFK133 .*none.bin cannot be read: No such file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_refused_with_their_place(name: str, run: Path, tmp_path: Path) -> None:
    content, message = WRONG[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        loaded(run, tmp_path / name)


def test_a_node_without_a_table_is_refused_at_its_line(tmp_path: Path) -> None:
    recipe = recipe_for(tmp_path, "language")
    recipe.write_text(f"{recipe.read_text()}vectors: {{out: x.txt}}\n")
    with pytest.raises(InputError, match=r"r.yaml:\d+:\d+: TFK133 vectors.out: `out` is no node .* write one of words"):
        train(load_recipe(recipe), tmp_path / "run")
    recipe.write_text(recipe.read_text().replace("{out: x.txt}", "x.txt"))
    with pytest.raises(SpecError, match="vectors"):
        load_recipe(recipe)
