"""classify from the command line."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save

from kinds_task import recipe_for
from saved_model import rewrite
from tfkit.cli import main
from tfkit.data import TextTokeniser
from tfkit.io import model_in

pytestmark = pytest.mark.xdist_group("classifying")  # its module fixture is built once


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classify")
    recipe = recipe_for(folder, "classification", "accuracy")
    assert main(["train", str(recipe), "-o", str(folder / "run"), "--set", "stopping.max_steps=40"]) == 0
    return folder / "run"


def test_a_line_is_a_label(run, typed, capsys):
    typed("the dog sings\n\nold house\n")
    assert main(["classify", str(run)]) == 0
    out, err = capsys.readouterr()
    assert (out.split("\n")[1::2], err) == (["", ""], "")
    assert {*out.split("\n")[0::2]} <= {"animal", "thing"}
    typed("the dog sings\n\nold house\n")
    assert main(["classify", str(run), "--json", "--backend", "eager", "--batch-tokens", "5"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["label"] or "" for row in rows] == out.splitlines()
    assert [row["line"] for row in rows] == [1, 2, 3]
    assert rows[1] == {"line": 2, "text": "", "label": None, "probability": None, "probabilities": {}}
    assert sum(rows[0]["probabilities"].values()) == pytest.approx(1)
    assert rows[0]["probability"] == rows[0]["probabilities"][rows[0]["label"]]


def test_unknown_pieces_are_counted(run, typed, capsys):
    typed("the dog\nthe Ω dog\n")
    assert main(["classify", str(run)]) == 0
    assert (
        capsys.readouterr().err == "<stdin>: 1 unknown token in 1 line, the first in line 2; the vocabulary has no such piece\n"
    )


def test_a_long_line_is_named_and_no_lines_are_no_labels(run, typed, capsys):
    typed("dog\nthe old dog sees the cat\n")
    assert main(["classify", str(run), "--max-length", "4"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err.endswith("tokens, the first 4 were read\n")
    assert err.startswith("<stdin>:2: ")
    typed("")
    assert main(["classify", str(run)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        (["{run}"], b"dog\ncaf\xe9\n", "<stdin>:2:4: TFK101 byte 0xe9 is no UTF-8"),
        (["{run}", "--max-length", "2"], "", "a whole number from 3 is expected"),
        (["{run}", "--device", "cuda:99"], "", "TFK046"),
        (["{run}", "--backend", "none"], "", "TFK012"),
        (["{run}/nowhere"], "", "cannot be read"),
        ([], "", "MODEL"),
    ],
)
def test_errors_are_reported(run, typed, capsys, words, text, message):
    typed(text)
    assert main(["classify", *(word.format(run=run) for word in words)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_all_lines_before_a_bad_one_are_labelled(run, typed, monkeypatch, capsys):
    monkeypatch.setattr("tfkit.cli.line_stream.CHUNK", 2)
    typed(b"dog\nold house\ncat\ncaf\xe9\ndog\n")
    assert main(["classify", str(run)]) == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err.startswith("<stdin>:4:4: TFK101 byte 0xe9 is no UTF-8")


def test_other_commands_name_this_one(run, typed, capsys):
    for words in (["translate", str(run)], ["generate", str(run), "--prompt", "x"]):
        typed("dog\n")
        assert main(words) == 2
        assert "it classifies text; use `tfkit classify MODEL`" in capsys.readouterr().err


def test_a_text_whose_classes_are_nan_is_named(run, typed, capsys, tmp_path):
    """The embedding of one word alone is NaN: texts without it have their labels."""
    model = Path(shutil.copytree(model_in(run), tmp_path / "model"))
    [piece] = TextTokeniser.load(model / "tokeniser.json").encode(["dog"])[0][:1]
    weights = load_file(model / "model.safetensors")
    weights["nodes.words.embedding.weight"][piece] = float("nan")
    rewrite(model, "model.safetensors", save(weights))
    typed("old house\n")
    assert main(["classify", str(model)]) == 2
    assert capsys.readouterr().err.startswith("TFK084 ")
    assert main(["serve", str(model), "--dry-run"]) == 2, "a server has no --allow-nan"
    assert capsys.readouterr().err.startswith("TFK084 ")
    typed("old house\n")
    assert main(["classify", str(model), "--allow-nan"]) == 0
    assert capsys.readouterr().out.strip() in ("animal", "thing")
    typed("old house\nthe dog sings\n")
    assert main(["classify", str(model), "--allow-nan"]) == 2
    assert "TFK085 what the model computes for `the dog sings` is NaN or infinite" in capsys.readouterr().err
