"""`tfkit verify`: its table, its files, its exit codes."""

from __future__ import annotations

import csv
import json

import pytest
import torch

import tfkit as package
from tfkit.testing.verification import faults

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


def test_the_table_says_what_holds_and_ends_in_a_verdict(tfkit, small):
    done = tfkit("verify", small, *FAST)
    assert (done.code, done.err) == (0, "")
    words = " ".join(done.out.split())
    assert "VERIFIED: small passed all" in words
    assert "on cpu in float32 with eager" in words
    for expected in ("decoding in chunks R20", "decoder.0.cross_attention eager float32", "does not apply", "exact", "seed 0"):
        assert expected in words


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


def test_a_saved_model_is_judged_and_a_wrong_one_is_told_in_words(tfkit, small, tmp_path, catalogue):
    words = [*FAST[:4]]
    model = package.build(small)
    fault = next(fault for fault in faults.model_faults() if fault.name == "embedding_scale_dropped")
    package.save(model, tmp_path / "saved")
    assert tfkit("verify", tmp_path / "saved", *words, "--json").json()["weights"] == "as given"
    done = tfkit("verify", small, "--weights", tmp_path / "saved", *words)
    assert done.code == 0
    wrong = tfkit("verify", small, "--weights", tmp_path / "saved", *FAST)
    assert wrong.code == 2
    assert "TFK082" in wrong.err
    assert fault.family == "wiring"


def test_a_failure_is_told_with_its_numbers(tfkit, small, monkeypatch):
    from tfkit.builtin.norm.layer_norm import nn as torch_nn

    built = torch_nn.LayerNorm
    monkeypatch.setattr("tfkit.builtin.norm.layer_norm.nn.LayerNorm", lambda *a, eps, **k: built(*a, eps=0.5, **k))
    done = tfkit("verify", small, *FAST)
    assert done.code == 1
    assert "FAILED norm, encoder.0.ffn (float32 cpu): layer_norm encoder.0.ffn: its output[" in " ".join(done.out.split())
    assert "is allowed" in done.out
    assert "checks of small failed" in " ".join(done.out.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_here_is_not_run(tfkit, small):
    done = tfkit("verify", small, "--device", "cuda")
    assert (done.code, done.err) == (3, "")
    assert "not run: there is no CUDA device here" in " ".join(done.out.split())
    assert "INCOMPLETE" in done.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--backend", "egaer"), "TFK012", "eager"),
        (("--lengths", "src=3"), "TFK073", "source, target"),
        (("-o", "proof.txt"), "TFK090", ".md, .csv, .json, not `proof.txt`; for instance proof.md"),
        (("-o", "no/such/place/proof.md"), "TFK081", "no directory"),
        (("--dtype", "float31"), "TFK090", "float32"),
        (("--weights", "specs"), "TFK082", "versions.json"),
        (("--batch", "0"), "TFK090", "from 1"),
    ],
)
def test_wrong_words_are_told_before_anything_runs(words, code, says, tfkit, small):
    done = tfkit("verify", small, *words)
    assert done.out == ""
    assert done.code == 2
    assert code in done.err
    assert says in done.err


def test_lengths_that_do_not_fit_in_memory_are_not_run(tfkit, small):
    done = tfkit("verify", small, "--lengths", "source=4000000000000")
    assert (done.code, done.err) == (3, "")
    words = " ".join(done.out.split())
    assert "not enough memory: DefaultCPUAllocator: can't allocate memory" in words
    assert "choose shorter --lengths, or fewer sites" in words
    assert "INCOMPLETE" in words
    assert "VERIFIED" not in words
