"""`python -m tfkit_fused`: what it prints, measures and refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from where import DEVICE, runs

pytest.importorskip("triton", reason="not run: Triton, of which kernels are made, is not installed")

from test_saved import CHOICE, HERE
from tfkit_fused import command, tuner
from tfkit_fused.saved import Saved, read, source
from tfkit_fused.tiles import Tiles
from tfkit_fused.tuner import Tuner


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("TFKIT_FUSED_TUNED", str(tmp_path / "fused.json"))
    return tmp_path / "fused.json"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "COMMAND"),
        (["tune", "--heads", "7", "--group", "2"], "7 heads are no multiple of the group 2"),
        (["tune", "--lengths", "64,5x"], "`` is no list of whole numbers"),
        (["tune", "--lengths", "0"], "`0` is no list"),
        (["tune", "--lengths", "9999999999999"], "is no list"),
        (["tune", "--head-dim", "257"], "from 1 to 256"),
        (["tune", "--mask", "causal,sloping"], "`sloping` is none of none, causal"),
        (["tune", "--dropout", "nan"], "no probability"),
        (["tune", "--dtype", "float64"], "float64"),
        (["tune", "--batches", "3"], "unrecognized arguments: --batches"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(words, said, capsys):
    assert command.main(words) == 2
    warned = capsys.readouterr()
    assert said in warned.err
    assert (warned.out, warned.err.count("\n"), warned.err.startswith("TFK090 ")) == ("", 1, True)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so():
    done = subprocess.run([sys.executable, "-m", "tfkit_fused", "tune"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "TFK060 there is no CUDA device to measure on; run it where the model will run\n"


def test_show_prints_what_is_saved_and_what_of_it_is_stale(path, capsys):
    assert command.main(["show"]) == 0
    assert capsys.readouterr().out == f"{path}: nothing is saved\n"
    for kernels in (source(), "0" * 16):
        Saved(path, HERE.model_copy(update={"kernels": kernels})).add("forward d64", CHOICE)
    assert command.main(["show"]) == 0
    choice = "forward d64: 128x64, 4 warps, 3 stages (128x64, 4 warps, 3 stages: 0.250 ms; 64x64, 4 warps, 3 stages: unusable)"
    device = "NVIDIA H100 80GB HBM3, sm_90, Triton 3.6.0"
    assert capsys.readouterr().out.splitlines() == [
        str(path), device, f"  {choice}", f"{device}, of other kernels: not used", f"  {choice}",
    ]  # fmt: skip


def test_show_tells_a_damaged_file(path, capsys):
    path.write_text("[")
    assert command.main(["show"]) == 2
    assert "is damaged" in capsys.readouterr().err
    path.unlink()
    path.mkdir()
    assert command.main(["show"]) == 2
    assert "could not be read: Is a directory" in capsys.readouterr().err


@runs
@pytest.mark.parametrize("words", [[], ["--inference"], ["--atomic", "--bias", "linear,distance,dense", "--dropout", "0.1"]])
def test_tune_measures_every_kernel_of_every_call(words, path, capsys, monkeypatch, launching):
    small, large = Tiles(16, 16, 4, 1), Tiles(32, 32, 4, 2)
    tuned = Tuner(Saved(path, HERE), lambda run: (run(), 3.0 - run.args[0].stages)[1], lambda: False)
    monkeypatch.setattr(command, "_device", lambda: torch.device(DEVICE))
    monkeypatch.setattr(tuner, "tuner_of", lambda device: tuned)
    launching(tuner_of=lambda device: tuned, tiles_for=lambda *arguments: (small, large))
    sizes = ["--batch", "2", "--heads", "2", "--group", "2", "--head-dim", "16", "--lengths", "18x20", "--dtype", "float16"]
    masks = ["--mask", "none" if "--atomic" in words else "none,causal-padded,keys-padded"]
    assert command.main(["tune", *sizes, *masks, *words]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"NVIDIA H100 80GB HBM3, saved in {path}"
    three = {"--inference": ["forward"], "--atomic": ["forward", "together"]}.get(
        "".join(words[:1]), ["forward", "queries", "keys"]
    )
    kernels = three * 3 + ["diagonals", "bias"] * ("--bias" in words)
    assert sorted(line.split()[0] for line in lines) == sorted(kernels)
    times = "16x16, 4 warps, 1 stages: 2.000 ms; 32x32, 4 warps, 2 stages: 1.000 ms"
    assert all(line.endswith(f": 32x32, 4 warps, 2 stages ({times})") for line in lines), lines
    assert {line.partition(":")[0] for line in lines} == read(path)[0][HERE].keys()


def test_what_a_file_says_moves_no_cursor_and_forges_no_line(path, capsys):
    Saved(path, HERE.model_copy(update={"device": "GPU\x1b[2J\nTFK000 forged"})).add("forward\x9b31m d64", CHOICE)
    assert command.main(["show"]) == 0
    warned = capsys.readouterr().out
    assert r"GPU\x1b[2J\nTFK000 forged, sm_" in warned
    assert r"  forward\x9b31m d64: " in warned
