"""`tfkit bench cpu`, and the commands that read its file."""

import json
from dataclasses import replace

import pytest

import tfkit as core
from tfkit_conformance.bench import products
from tfkit_conformance.bench.products import sizes_of


@pytest.fixture
def few(monkeypatch):
    """Few numbers of rows; afterwards the built-in rule."""
    own = products._measure
    monkeypatch.setattr(
        products, "_measure", lambda size, threads, settings: own(size, threads, replace(settings, rows=(1, 4)))
    )
    yield
    core.use_cpu_table(None)


def test_the_file_of_a_run_serves_plan_and_doctor(tfkit, tmp_path, few):
    file = tmp_path / "cpu.json"
    spec = "specs/transformer-tiny.yaml"
    done = tfkit("bench", "cpu", "--spec", spec, "--rounds", "1", "--json", file)
    assert (done.code, done.err) == (0, "")
    assert "fastest products of decoding on " in done.out
    weights = {(row["outputs"], row["inputs"]) for row in json.loads(file.read_text())["rows"]}
    assert weights == set(sizes_of(core.build(spec, device="meta")))
    planned = tfkit("plan", spec, "--inference", "--cpu-table", file)
    assert planned.code == 0
    assert f"by cpu.json ({len(weights)} weights; threads " in " ".join(planned.out.split())
    assert tfkit("plan", spec, "--inference", "--json").json()["float32_products"]["table"] is None
    assert "cpu.json" in tfkit("doctor", "--cpu-table", file).out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "cuda"], "`tfkit bench cpu` measures the CPU, not cuda"),
        (["--backends", "sdpa"], "argument --backends: `tfkit bench cpu` takes none"),
        (["--tokens", "8"], "argument --tokens: `tfkit bench cpu` takes none"),
        (["--budget", "8"], "argument --budget: `tfkit bench cpu` takes none"),
        (["--list"], "argument --list: `tfkit bench cpu` takes none"),
        (["--threads", "2,1"], "rising order"),
        (["--threads", "1,1000000000"], "argument --threads: 1,000,000,000 threads, and "),
        (["--spec", "none.yaml"], "none.yaml"),
        (["--json", "nowhere/x.json"], "is not a directory"),
    ],
)
def test_options_that_do_not_fit_are_refused(tfkit, words, said):
    done = tfkit("bench", "cpu", *words)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize("what", ["attention", "auto"])
@pytest.mark.parametrize("words", [["--spec", "specs/bert-base.yaml"], ["--threads", "1"]])
def test_options_of_cpu_are_refused_elsewhere(tfkit, what, words):
    done = tfkit("bench", what, *words)
    assert done.code == 2
    assert f"argument {words[0]}: `tfkit bench {what}` takes none" in done.err


@pytest.mark.parametrize("words", [["--device", "cuda", "--inference"], ["--inference", "--dtype", "bfloat16"], []])
def test_a_plan_without_products_on_a_cpu_takes_no_table(tfkit, words):
    done = tfkit("plan", "specs/bert-base.yaml", *words, "--cpu-table", "pyproject.toml")
    assert done.code == 2
    assert "--cpu-table is for decoding in float32 on a CPU" in done.err
