"""`tfkit verify`: its table, its files, its exit codes."""

from __future__ import annotations

import csv
import json
import re
import types
from dataclasses import replace

import pytest
import torch

import tfkit as package
from kill_matrix.models import mutants as diagnostics
from tfkit.plugin import hookimpl

FAST = (
    "--backend",
    "eager",
    "--lengths",
    "source=6,target=5",
    "--set",
    "encoder.num_layers=1",
    "--set",
    "decoder.num_layers=1",
)


@pytest.mark.slow
def test_the_table_ends_in_a_verdict(tfkit, small):
    done = tfkit("verify", small, *FAST)
    assert (done.code, done.err) == (0, "")
    words = " ".join(done.out.split())
    assert "VERIFIED: small passed all" in words
    assert "on cpu in float32 with eager" in words
    for expected in ("decoding in chunks R20", "decoder.0.cross_attention eager float32", "does not apply", "exact", "seed 0"):
        assert expected in words


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["md", "csv", "json"])
def test_the_table_is_written_whole_with_what_it_was_made_with(suffix, tfkit, small, tmp_path):
    path = tmp_path / f"proof.{suffix}"
    data = tfkit("verify", small, *FAST, "--json", "-o", path, "--seed", "4").json()
    assert (data["verdict"], data["exit_code"], data["seed"]) == ("VERIFIED", 0, 4)
    assert data["versions"]["torch"] == torch.__version__
    text = path.read_text()
    if suffix == "json":
        assert json.loads(text) == data
    elif suffix == "csv":
        rows = list(csv.DictReader(text.splitlines()))
        assert len(rows) == len(data["rows"])
        assert {row["status"] for row in rows} == {row["status"] for row in data["rows"]}
        assert f"torch={torch.__version__}" in rows[0]["versions"]
    else:
        assert text.startswith("# small: VERIFIED\n")
        assert f"torch {torch.__version__}" in text
        assert "| whole model | decoding in chunks | R20 | small | eager | float64 | cpu |" in text
    assert [file.name for file in tmp_path.iterdir()] == sorted(
        {"small.yaml", path.name}, key=[f.name for f in tmp_path.iterdir()].index
    )


@pytest.mark.slow
def test_a_saved_model_is_evaluated_and_a_wrong_one_is_reported_in_words(tfkit, small, tmp_path, catalogue):
    words = [*FAST[:4]]
    model = package.build(small)
    diagnostic = next(diagnostic for diagnostic in diagnostics.model_mutants() if diagnostic.name == "embedding_scale_dropped")
    package.save(model, tmp_path / "saved")
    assert tfkit("verify", tmp_path / "saved", *words, "--json").json()["weights"] == "as given"
    done = tfkit("verify", small, "--weights", tmp_path / "saved", *words)
    assert done.code == 0
    wrong = tfkit("verify", small, "--weights", tmp_path / "saved", *FAST)
    assert wrong.code == 2
    assert "TFK082" in wrong.err
    assert diagnostic.family == "wiring"


@pytest.mark.slow
def test_a_failure_is_reported_with_its_numbers(tfkit, small, monkeypatch):
    from tfkit.builtin.norm.norms import nn as torch_nn

    built = torch_nn.LayerNorm
    monkeypatch.setattr("tfkit.builtin.norm.norms.nn.LayerNorm", lambda *a, eps, **k: built(*a, eps=0.5, **k))
    done = tfkit("verify", small, *FAST)
    assert done.code == 1
    assert "layer_norm encoder.0.ffn: `nodes.encoder.layers.0.norms.ffn.weight`: its output[" in " ".join(done.out.split())
    assert "is allowed" in done.out
    assert "checks of small failed" in " ".join(done.out.split())


def test_the_file_holds_the_results_so_far(tfkit, small, tmp_path, monkeypatch):
    """Ctrl-C leaves what is done, in the file and printed."""
    from tfkit_conformance.verification import verifier as run

    path, seen = tmp_path / "proof.json", []

    def interrupted(subject):
        seen.append(json.loads(path.read_text()))
        if seen[-1]["rows"][-1]["part"] == "whole model":
            raise KeyboardInterrupt
        return 0.0

    tried = [run.PROPERTIES[0], type(run.PROPERTIES[0])("ends", "", "", interrupted)]
    monkeypatch.setattr(run, "PROPERTIES", tried)
    done = tfkit("verify", small, *FAST[2:], "--backend", "eager,sdpa", "--json", "-o", path)
    assert (done.code, done.err) == (130, "tfkit: interrupted\n")
    first, second = seen
    assert {row["part"] for row in first["rows"]} == {"sub-layers"}
    assert {row["backend"] for row in second["rows"] if row["part"] == "whole model"} == {"eager"}
    assert (second["finished"], second["verdict"]) == (False, "INCOMPLETE")
    assert second["rows"][: len(first["rows"])] == first["rows"]
    assert json.loads(path.read_text()) == json.loads(done.out)
    page = tmp_path / "proof.md"
    assert tfkit("verify", small, *FAST[2:], "--backend", "eager,sdpa", "-o", page).code == 130
    assert "INCOMPLETE: nothing failed in" in page.read_text()
    assert "but the run has not finished" in page.read_text()


def test_progress_is_printed_without_a_terminal(capsys):
    from tfkit.commands import Progress

    with Progress("verify", seconds=3600.0) as progress:
        for words in ("sub-layers in float32 on cpu: norm, encoder.0.ffn", "whole model with sdpa in float32 on cpu: repeat"):
            progress.show(words)
        assert capsys.readouterr().err == "", "a quick command says nothing"
        assert re.fullmatch(r"verify: \d+ s, check 2, whole model with sdpa in float32 on cpu: repeat", progress.line())
    with Progress("verify", seconds=0.001) as progress:
        while not (said := capsys.readouterr().err):
            progress.show("norm")
    assert said.startswith("verify: 0 s, check ")


@pytest.mark.slow
def test_every_check_is_announced(small):
    from tfkit_conformance.verification import verify

    told = []
    report = verify(small, backends=["sdpa"], lengths={"source": 4, "target": 3}, progress=told.append)
    for row in report.rows:
        assert any(row.property in words and row.dtype in words and row.backend in words for words in told), row
    assert "whole model with sdpa in float64 on cpu: decoding in chunks" in told


@pytest.mark.slow
def test_an_undeclared_dtype_is_not_added_and_is_named_if_requested(tfkit, small, catalogue, installed):
    eager = catalogue.find("backend", "eager")
    can = eager.capabilities.model_copy(update={"dtypes": frozenset({"float32"})})
    plugin = types.ModuleType("acme")
    plugin.tfkit_attention_backends = hookimpl(lambda: [replace(eager, name="acme.single", capabilities=can)])
    wider = catalogue.with_plugin(plugin, "acme")
    installed(wider)
    words = ("--backend", "acme.single", *FAST[2:])
    done = tfkit("verify", small, *words)
    assert (done.code, done.err) == (0, "")
    assert "float64 is added" not in done.out
    assert "float64  " not in done.out.replace("float64 run", "")
    assert "float64 is added, where rounding hides no error" in tfkit("verify", small, *FAST).out
    done = tfkit("verify", small, *words, "--dtype", "float32,bfloat16")
    assert done.code == 3
    said = (
        "acme.single bfloat16 cpu: it serves no call in bfloat16: dtype bfloat16 is not among float32; eager serves every call"
    )
    assert said in " ".join(done.out.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_device_is_not_run(tfkit, small):
    done = tfkit("verify", small, "--device", "cuda")
    assert (done.code, done.err) == (3, "")
    assert "not run: there is no device cuda here" in " ".join(done.out.split())
    assert "INCOMPLETE" in done.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--backend", "egaer"), "TFK012", "eager"),
        (("--lengths", "src=3"), "TFK073", "source, target"),
        (("-o", "proof.txt"), "TFK090", ".md, .csv, .json, not `proof.txt`; for instance proof.md"),
        (("-o", "no/such/place/proof.md"), "TFK081", "is not a directory"),
        (("-o", "README.md", "--auto-table", "./README.md"), "TFK081", "the command reads it"),
        (("--dtype", "float31"), "TFK090", "float32"),
        (("--weights", "specs"), "TFK082", "versions.json"),
        (("--batch", "0"), "TFK090", "from 1"),
    ],
)
def test_wrong_arguments_are_reported_before_anything_runs(words, code, says, tfkit, small):
    done = tfkit("verify", small, *words)
    assert done.out == ""
    assert done.code == 2
    assert code in done.err
    assert says in done.err


def test_lengths_that_do_not_fit_in_memory_are_not_run(tfkit, small):
    done = tfkit("verify", small, "--lengths", "source=4000000000000")
    assert (done.code, done.err) == (3, "")
    words = " ".join(done.out.split())
    assert "not enough memory: 3 rows of 4,000,000,000,000 positions are more than 16,777,216 positions" in words
    assert "choose shorter --lengths, or fewer sites" in words
    assert "INCOMPLETE" in words
    assert "VERIFIED" not in words
