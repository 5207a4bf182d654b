"""tfkit export from the command line: text to text, overwriting, and refusals that write nothing."""

from __future__ import annotations

import json
import runpy
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import ctranslate2
import pytest
from tokenizers import Tokenizer

import tfkit
from tfkit.cli import main
from tfkit.interop.export import TARGETS, export
from translation_task import sentences, write_task

from .engine import built

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def saved(catalogue, tmp_path):
    return tfkit.save(built(catalogue), tmp_path / "model")


def names(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.slow
def test_a_trained_model_translates_the_same_text(tmp_path, monkeypatch, capsys, typed):
    recipe = write_task(tmp_path)
    run = tmp_path / "run"
    steps = [f"--set={name}" for name in ("stopping.max_steps=100", "validation.every_steps=100", "keeping.every_steps=100")]
    assert main(["train", str(recipe), "-o", str(run), *steps]) == 0
    assert main(["export", str(run), "--to", "ctranslate2", "-o", str(tmp_path / "out")]) == 0
    texts = [source for source, _ in sentences(20, seed=5)] + ["a word it has never seen", "dog"]
    typed("\n".join(texts))
    capsys.readouterr()
    assert main(["translate", str(run), "--beams", "1"]) == 0
    ours = capsys.readouterr().out.splitlines()
    tokeniser = Tokenizer.from_file(str(tmp_path / "out" / "tokeniser.json"))
    engine = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", compute_type="float32", intra_threads=1)
    ids = []
    for text in texts:  # one by one: tfkit's limit of new tokens depends on the length of the source, its end token included
        tokens = tokeniser.encode(text).tokens
        limit = len(tokens) + 1 + 50
        (found,) = engine.translate_batch([tokens], beam_size=1, min_decoding_length=0, max_decoding_length=limit)
        ids.append([tokeniser.token_to_id(token) for token in found.hypotheses[0]])
    assert [tokeniser.decode(row) for row in ids] == ours
    assert len(set(ours)) > 5
    typed("\n".join(texts))
    monkeypatch.setattr(sys, "argv", ["translate.py", str(tmp_path / "out")])
    runpy.run_path(str(ROOT / "docs" / "examples" / "ctranslate2" / "translate.py"), run_name="__main__")
    with_beams = capsys.readouterr().out.splitlines()
    found = [engine.translate_batch([tokeniser.encode(text).tokens], beam_size=5)[0].hypotheses[0] for text in texts]
    assert with_beams == [tokeniser.decode([tokeniser.token_to_id(token) for token in tokens]) for tokens in found]


def test_the_command_lists_the_files(saved, tmp_path, capsys):
    assert main(["export", str(saved), "--to", "ctranslate2", "-o", str(tmp_path / "out"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert sorted(said["files"]) == names(tmp_path / "out") == [
        "config.json", "model.bin", "shared_vocabulary.json", "tfkit-export.json",
    ]  # fmt: skip
    assert main(["export", str(saved), "--to", "ctranslate2", "-o", str(tmp_path / "out")]) == 2
    assert "TFK080" in capsys.readouterr().err
    words = ["export", str(saved), "--to", "ctranslate2", "-o", str(tmp_path / "out"), "--force", "--quantization", "int8"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'out'}: 4 files for ctranslate2\n  config.json  ")
    assert (tmp_path / "out" / "model.bin").stat().st_size < said["files"]["model.bin"]


def test_the_other_files_of_a_model_are_copied(catalogue, tmp_path):
    texts = {"notes.txt": "größer", "spiece.model": b"\xff\x00"}
    saved = tfkit.save(built(catalogue), tmp_path / "model", texts=texts)
    assert main(["export", str(saved), "--to", "ctranslate2", "-o", str(tmp_path / "out")]) == 0
    assert {name: (tmp_path / "out" / name).read_bytes() for name in texts} == {
        "notes.txt": "größer".encode(), "spiece.model": b"\xff\x00",
    }  # fmt: skip
    saved = tfkit.save(built(catalogue), tmp_path / "other", texts={"config.json": "{}"})
    assert main(["export", str(saved), "--to", "ctranslate2", "-o", str(tmp_path / "none")]) == 1
    assert names(tmp_path) == ["model", "other", "out"]


def test_a_large_file_of_a_model_is_copied_and_never_held(catalogue, tmp_path):
    with (tmp_path / "notes").open("wb") as file:
        file.truncate(64 << 20)
        file.write("\U0001f600".encode())  # a text of Python would take four bytes for each character
    saved = tfkit.save(built(catalogue), tmp_path / "model", texts={"notes.txt": tmp_path / "notes"})
    tracemalloc.start()
    try:
        assert main(["export", str(saved), "--to", "ctranslate2", "-o", str(tmp_path / "out")]) == 0
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert (tmp_path / "out" / "notes.txt").stat().st_size == 64 << 20


@pytest.mark.parametrize("what", ["a foreign file", "a saved model", "a listing of somebody else"])
def test_force_replaces_nothing_else(what, saved, tmp_path, capsys):
    out = tmp_path / "out"
    if what == "a saved model":
        out = saved
    else:
        export(tfkit.load(saved), out, "ctranslate2")
        (out / "notes.txt").write_text("mine")
    if what == "a listing of somebody else":
        listing = json.loads((out / "tfkit-export.json").read_text())
        listing["files"]["notes.txt"] = {"bytes": 4, "sha256": "0" * 64}
        (out / "tfkit-export.json").write_text(json.dumps(listing))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert main(["export", str(saved), "--to", "ctranslate2", "-o", str(out), "--force"]) == 2
    assert "TFK080" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_all_reasons_are_printed_and_nothing_is_written(catalogue, tmp_path, capsys):
    model = built(catalogue, changes=["encoder.placement=deepnorm", "decoder.self_attention.softcap=5.0"])
    saved = tfkit.save(model, tmp_path / "model")
    assert main(["export", str(saved), "--to", "ctranslate2", "-o", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "TFK127 CTranslate2 cannot express `encoder.placement` is deepnorm: the engine does not multiply the residual" in err
    assert "TFK127 CTranslate2 cannot express `decoder.self_attention.softcap` is 5: the engine has a softcap only for" in err
    assert names(tmp_path) == ["model"]


def write_half(model, texts, directory, **options):
    (directory / "model.bin").write_bytes(b"half")
    raise OSError(28, "No space left on device")


def test_a_write_that_fails_leaves_nothing(saved, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(TARGETS, "ctranslate2", replace(TARGETS["ctranslate2"], write=f"{__name__}:write_half"))
    assert main(["export", str(saved), "--to", "ctranslate2", "-o", str(tmp_path / "out")]) == 1
    assert "TFK081" in capsys.readouterr().err
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{saved}", "--to", "ctranslate", "-o", "{out}"], "unknown target `ctranslate`; did you mean `ctranslate2`?"),
        (["{saved}", "--to", "ctranslate2", "-o", "{out}", "--quantization", "int4"], "unknown quantization `int4`"),
        (["{saved}", "--to", "ctranslate2"], "required: -o"),
        (["{saved}", "-o", "{out}"], "required: --to"),
        (["nowhere", "--to", "ctranslate2", "-o", "{out}"], "nowhere"),
        (["{saved}/spec.yaml", "--to", "ctranslate2", "-o", "{out}"], "Not a directory"),
        (["{saved}", "--to", "ctranslate2", "-o", "{saved}/spec.yaml"], "TFK080"),
    ],
)
def test_mistakes_on_the_command_line(words, message, saved, tmp_path, capsys):
    assert main(["export", *(word.format(saved=saved, out=tmp_path / "out") for word in words)]) == 2
    assert message in capsys.readouterr().err
    assert names(tmp_path) == ["model"]


def test_a_missing_package_is_named_with_its_extra(saved, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # Python takes it for not installed
    assert main(["export", str(saved), "--to", "ctranslate2", "-o", str(tmp_path / "out")]) == 2
    assert "needs the package ctranslate2, not installed here; pip install 'tfkit-core[ctranslate2]'" in capsys.readouterr().err


def test_every_target_has_its_module_and_its_place_on_the_command_line():
    from tfkit.cli import export as command
    from tfkit.interop import ctranslate2 as target
    from tfkit.plugin.model_parts import load

    assert set(TARGETS) == set(command.TARGETS)
    assert command.QUANTIZATIONS == target.QUANTIZATIONS
    for each in TARGETS.values():
        assert callable(load(each.refusals))
        assert callable(load(each.write))
