"""Every benchmark runs, once and small; nothing is timed."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.exhaustive

sys.path.insert(0, str(Path(__file__).parent))

SMALL = ["--layers", "1", "--width", "32", "--vocab", "50", "--rounds", "1"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # x-transformers calls it at import
def test_train_step():
    import train_step

    assert len(train_step.main([*SMALL, "--batch", "2", "--length", "5"])["speed"]) == 4


def test_greedy():
    import greedy

    assert greedy.main([*SMALL, "--batch", "2", "--source", "5", "--tokens", "3"])["tokens_per_call"] == 6


@pytest.mark.parametrize(("beams", "given"), [("1", "words"), ("3", "ids")])
def test_translate(beams, given, tmp_path):
    import translate

    small = ["--layers", "1", "--width", "32", "--vocab", "50", "--rounds", "1"]
    words, ids = tmp_path / "words", tmp_path / "ids"
    words.write_text("A dog\nTwo dogs are running\n", encoding="utf-8")
    ids.write_text("5 6 2\n7 2\n9 9 9 2\n", encoding="utf-8")
    files = {"words": ["--source", str(words)], "ids": ["--source", str(ids), "--target", str(ids), "--ids"]}
    result = translate.main([*small, "--beams", beams, "--alpha", "0", *files[given]])
    assert len(result["speed"]) == 4
    assert result["share_of_equal_outputs"] == {"tfkit": 1.0, "Hugging Face generate": 1.0, "CTranslate2 float32": 1.0}


def test_translate_cells(tmp_path):
    import translate_cells

    small = [
        "--shapes",
        "tiny",
        "--batch-rows",
        "8",
        *SMALL,
        "--markdown",
        str(tmp_path / "cells.md"),
        "--json",
        str(tmp_path / "cells.json"),
    ]
    cells = translate_cells.main(small)["cells"]
    assert [(one["beams"], one["rows"]) for one in cells] == [(1, 8), (5, 8)]
    below = [cells[0] | {"float32": 1.04, "int8": 1.06}]
    assert "| **1.04** | 1.06 |" in translate_cells.table(below)
    assert len((tmp_path / "cells.md").read_text().splitlines()) == 2 + len(cells)


def test_shortlist():
    import shortlist

    small = [
        "--shape",
        "tiny",
        "--layers",
        "1",
        "--vocab",
        "90",
        "--ids",
        "20",
        "--common",
        "3",
        "--tokens",
        "3",
        "--rounds",
        "1",
    ]
    assert shortlist.main([*small, "--batch", "2", "--beams", "2"])["columns"] < 45


def test_cheap_decoders():
    import cheap_decoders

    small = ["--tokens", "3", "--vocab", "90", "--ids", "20", "--rounds", "1", "--beams", "2"]
    assert "transformer-fast" in cheap_decoders.main(small)["speed"]


def test_beam_top_k():
    import beam_top_k

    assert "torch" in beam_top_k.main(["--shapes", "2x2x50", "--rounds", "1"])["speed"]


def test_exported(tmp_path):
    import exported

    from tfkit.cli import main
    from translation_task import write_task

    assert main(["train", str(write_task(tmp_path)), "-o", str(tmp_path / "run"), "--set", "stopping.max_steps=2"]) == 0
    files = ["--source", str(tmp_path / "train.src"), "--target", str(tmp_path / "train.trg"), "--sentences", "6"]
    result = exported.main([str(tmp_path / "run"), *files, "--beams", "1", "2"])
    assert [result[name]["float32"]["equal"] for name in ("greedy", "2 beams")] == [6, 6]


def test_serve(tmp_path):
    import serve_steady

    import serve
    from tfkit.cli import main
    from translation_task import write_task

    shape = ["model.defaults.placement=post", "stopping.max_steps=2"]
    words = [word for change in shape for word in ("--set", change)]
    assert main(["train", str(write_task(tmp_path)), "-o", str(tmp_path / "run"), *words]) == 0
    small = ["--sentences", "6", "--texts", "2", "--clients", "2", "--beams", "2", "--rounds", "1"]
    given = ["--model", str(tmp_path / "run"), "--source", str(tmp_path / "train.src")]
    result = serve.main([*given, *small])
    assert result["served_texts_equal_offline"]["tfkit"]
    assert result["exit_codes_on_sigterm"] == [0, 0]
    result = serve_steady.main([*given, "--requests", "4", "--rounds", "2"])
    assert (len(result["megabytes"]), result["exit_code_on_sigterm"]) == (3, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_fused_overhead(tmp_path):
    import fused_overhead

    found = fused_overhead.main(["--calls", "2", "--rounds", "1", "--json", str(tmp_path / "overhead.json")])
    assert set(found["microseconds"]) > {"bare SDPA", "fused"}
    assert (tmp_path / "overhead.json").exists()


def test_overhead(tmp_path):
    import overhead

    overhead.main(["--calls", "2", "--rounds", "1", "--json", str(tmp_path / "overhead.json")])
    assert (tmp_path / "overhead.json").exists()


def test_startup(monkeypatch):
    """Of its commands one without torch, and the one that all are related to."""
    import startup

    few = {name: startup.COMMANDS[name] for name in ("tfkit explain", "import torch")}
    monkeypatch.setattr(startup, "COMMANDS", few)
    assert startup.main(["--rounds", "1", "--warm-up", "0"])["peak_over_parameters"] > 0


def test_chunked_loss():
    import chunked_loss

    found = chunked_loss.main(["--rounds", "1", "--shapes", "9", "50", "8"])
    assert found["speed"]["all logits"] == 1.0
    assert found["shapes"][0]["bytes"].keys() == found["speed"].keys()


def test_products():
    import products

    assert products.main(["--shapes", "7x5x9", "--rounds", "1"])["speed"]["MKL"] == 1.0


def test_attention_few():
    import attention_few

    found = attention_few.main(["--shapes", "70x2x1x30x16 2x2x1x3x16", "--rounds", "1"])["microseconds"]
    assert [row["the_rule_takes_products"] for row in found.values()] == [True, False]


def test_packed():
    import packed

    from tfkit.cpu import products

    before = products.PRODUCT
    try:
        if products.probe() is not None:
            assert packed.main(["--weights", "7x5", "--rows", "1 3", "--rounds", "1"])["speed"]["MKL"] == 1.0
    finally:
        products.PRODUCT = before


def test_train_compiled(monkeypatch):
    import torch
    import train_compiled

    from tfkit.data import batch_shapes

    plain = torch.compile  # writing C++ takes minutes
    monkeypatch.setattr(torch, "compile", lambda *given, **options: plain(*given, **options, backend="aot_eager"))
    monkeypatch.setattr(batch_shapes, "MAX_SHAPES", batch_shapes.MAX_SHAPES)
    small = ["--rows", "200", "--tokens", "200", "--vocab", "400", "--steps", "1", "--layers", "1"]
    assert set(train_compiled.main(small)["speed"]) == {"compiled", "as it was", "as it was, MKL"}


def test_train_tokens(tmp_path):
    import train_tokens

    small = ["--rows", "200", "--tokens", "200", "--vocab", "400", "--steps", "1", "--json", str(tmp_path / "tokens.json")]
    assert train_tokens.main(small)["tokens_per_second"]["tfkit train"] > 0


def test_train_processes(monkeypatch):
    """Its commands in forks of a process that has imported what they need."""
    import train_processes

    from torchrun import COMMAND, ForkedJobs

    jobs = ForkedJobs()

    def run(command, env, **options):
        *start, _, _ = before = command[1 : command.index("tfkit") + 1]
        words, threads = command[1 + len(before) :], {"OMP_NUM_THREADS": env["OMP_NUM_THREADS"]}
        if start:
            return jobs.torchrun(*start[2:], words=words)
        return jobs.script(COMMAND, *words, count=None, environment=threads)

    monkeypatch.setattr(train_processes, "subprocess", SimpleNamespace(run=run))
    small = ["stopping={max_steps: 2}", "validation.sentences=1", "data.held_out=2", "model.defaults.d_model=16"]
    given = [word for each in [*small, "model.defaults.attention.num_heads=2"] for word in ("--set", each)]
    try:
        found = train_processes.main(["--rounds", "1", "--first", "1", "--tokens", "400", *given])["speed"]
    finally:
        jobs.close()
    assert list(found) == ["1 thread", "2 threads", "2 processes"]


def test_mutation():
    import mutation

    rows = mutation.constants(few=True)["rows"]
    assert [row["times"] for row in rows] == [8.0, 0.125] * 2
    shown = "--- a.py\n+++ a.py\n@@\n def f():\n-    return 1\n+    return 2\n"
    assert mutation.changed(shown) == ("return 1", "return 2")
    assert mutation.why([{"function": "f", "is": r"return \d", "why": "equal"}], "f", "return 1", "return 2") == "equal"
    assert mutation.why([{"function": "g", "is": "return", "why": "equal"}], "f", "return 1", "return 2") == ""


def test_conformance_bench(tmp_path, monkeypatch):
    import conformance

    monkeypatch.setattr(conformance, "subjects", lambda: conformance_subjects(conformance)[:2])
    found = conformance.correct_kernels(8)
    assert found["runs"] > 0
    assert found["alarms"] == 0
    mutant = conformance.ATTENTION_MUTANTS[-1]
    narrow = mutant.capabilities.model_copy(update={"dtypes": frozenset({"float32"}), "backward": False})
    monkeypatch.setattr(conformance, "ATTENTION_MUTANTS", [replace(mutant, capabilities=narrow)])
    found = conformance.kills()
    assert found["killed"] == 1
    monkeypatch.setattr(conformance, "check_backend", None)  # with `only`, the others are taken over
    assert conformance.kills(found["rows"], {"another"})["rows"] == found["rows"]


def conformance_subjects(conformance):
    under_test = conformance.backend_under_test
    return [(one.name, under_test(one.entry, attend=one.attend), 1.0) for one in conformance.CORRECT_KERNELS]


def test_compiled_ahead(monkeypatch):
    """Whatever the suite calls is called, with its gradient, by one of the processes, and what that gives goes nowhere."""
    import compiled_ahead
    import torch

    from tfkit_conformance.attention.case import Case
    from tfkit_conformance.attention.compare import leaves_of

    case, found, progress = Case(B=2, H=4, G=2, Q=5, K=7, gradients=True, grad_layout="expanded"), [], []

    def evaluated(subject, **options):
        inputs = case.inputs()
        output = subject.attend(inputs, subject.options).output
        leaves = list(leaves_of(inputs).values())
        found.append((output, torch.autograd.grad(output, leaves, case.grad_output())))
        return type("Report", (), {"seconds": 0.0, "findings": ()})

    class Other(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query):
            return query * torch.nan

        @staticmethod
        def backward(ctx, gradient):
            progress.append(gradient.stride())
            return gradient * torch.nan

    def other(inputs, options):
        return compiled_ahead.AttentionOutput(Other.apply(inputs.query))

    monkeypatch.setattr(compiled_ahead, "check_backend", evaluated)
    plain = compiled_ahead.backend_under_test
    monkeypatch.setattr(compiled_ahead, "backend_under_test", lambda entry, device: plain(entry, device=device, attend=other))
    given = ["sdpa", "--device", "cpu", "--dtypes", "float32", "--workers", "3"]
    rows = [compiled_ahead.main([*given, "--rank", str(rank)])[0] for rank in range(3)]
    assert sorted(row["calls"] for row in rows) == [0, 0, 1]
    assert progress == [case.grad_output().stride()]
    assert len(found) == 3
    for output, gradients in found:
        assert torch.equal(output, found[0][0])
        assert all(torch.equal(one, two) for one, two in zip(gradients, found[0][1], strict=True))


@pytest.mark.parametrize(("stage", "commands"), [("speed", 2), ("auto", 1)])
def test_on_cuda_asks_for_nothing_but_a_device(stage, commands, tmp_path):
    """Where there is none, that is all that its commands have to say: none of their options is wrong."""
    script = str(Path(__file__).parent / "on_cuda.sh")
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        ["bash", script, stage, str(tmp_path)], capture_output=True, text=True, check=False, env=environment,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    progress = done.stdout.splitlines()
    assert done.returncode == len(progress) == commands
    assert all("TFK046 there is no device cuda" in line or "TFK060 there is no CUDA device" in line for line in progress), (
        progress
    )


def test_source_mutants():
    """In a process of its own, which forks: a test worker has threads."""
    words = """
import source_mutants as bench
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

source = Path(import_module("tfkit_example_backend.online").__file__).read_text()
mutants = []
for old, new in (("select_rows(output / total, rows)", "select_rows(output, rows)"), ("= higher", "= (")):
    wrong = source.replace(old, new)
    mutants.append(bench.SourceMutant("example.online", "attend", "", *bench.changed_lines(source, wrong), wrong))
found = dict(bench.results(mutants, "quick", 2, 10.0))
for mutant in mutants:
    print(found[mutant])
rows = [{"key": "a", "killed_by": {"quick": "", "standard": "R1"}}, {"key": "b", "killed_by": {"quick": ""}}]
print(bench.summary(rows, {}, 0))
"""
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    seen, no_code, found = done.stdout.splitlines()
    assert seen not in ("", "import", "crash", "time")
    assert no_code == "import"
    assert "'evaluated': 2, 'killed': 1" in found
    assert "'survivors': [{'key': 'b', 'why': ''}]" in found


def test_recurrent():
    import recurrent

    small = ["--batch", "2", "--source", "5", "--target", "4", "--vocab", "20", "--width", "6", "--state", "4", "--rounds", "1"]
    assert len(recurrent.main(small)["speed"]) == 4


def test_import_weights(tmp_path):
    import import_weights

    small = ["--layers", "1", "--width", "24", "--rounds", "1", "--folder", str(tmp_path)]
    assert import_weights.main(small)["bytes"] > 0


def test_int8():
    import int8

    from tfkit.cpu import products

    before = products.PRODUCT
    try:
        assert int8.main(["--weights", "7x5", "--rows", "1 3", "--rounds", "1"])["speed"]["float32"] == 1.0
    finally:
        products.PRODUCT = before


def test_int8_scores(tmp_path):
    import int8_scores

    from tfkit.cli import main
    from translation_task import write_task

    assert main(["train", str(write_task(tmp_path)), "-o", str(tmp_path / "run"), "--set", "stopping.max_steps=2"]) == 0
    files = ["--source", str(tmp_path / "train.src"), "--target", str(tmp_path / "train.trg"), "--beams", "2"]
    rows = int8_scores.main([str(tmp_path / "run"), *files, "--json", str(tmp_path / "scores.json")])["rows"]
    assert rows["float32"]["lines_as_float32"] == len((tmp_path / "train.src").read_text().splitlines())


def on_cuda(*words, **variables):
    script = Path(__file__).with_name("on_cuda.sh")
    command = ["bash", script, *words]
    return subprocess.run(
        command, cwd=script.parents[1], capture_output=True, text=True, env=os.environ | variables, timeout=60
    )


PROOFS = ["conformance_fused", "conformance_fused.atomic", "conformance_cudnn", "conformance_sdpa", "models"]


def test_a_first_run_on_a_device_has_its_stages_in_order_and_fits_in_12_minutes(tmp_path):
    done = on_cuda("all", str(tmp_path), "--dry-run", PYTHON="python3")
    assert (done.returncode, done.stderr) == (0, "")
    limits = {name: int(seconds) for name, seconds in re.findall(r"^([\w.]+): at most (\d+) s: .*$", done.stdout, re.MULTILINE)}
    assert [*limits] == [*PROOFS, "attention", "flex", "steps", "auto", "tune", "tuned"]
    one_after_another = sum(seconds for name, seconds in limits.items() if name not in PROOFS)
    assert max(limits[name] for name in PROOFS) + one_after_another + 45 <= 12 * 60
    assert list(tmp_path.iterdir()) == []


def test_proofs_run_side_by_side_and_failures_are_counted(tmp_path):
    """With a stand-in for Python that waits for all others, and fails for two of them."""
    (tmp_path / "started").mkdir()
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
case "$*" in *xdist*) exit 1;; esac
touch {tmp_path}/started/$$
while [ $(ls {tmp_path}/started | wc -l) -lt 5 ]; do sleep 0.05; done
case "$*" in *cudnn*--device*|*"conformance sdpa"*) exit 3;; esac
"""
    )
    python.chmod(0o755)
    done = on_cuda("proofs", str(tmp_path / "out"), PYTHON=str(python))
    codes = dict(re.findall(r"^([\w.]+): exit code (\d+)", done.stdout, re.MULTILINE))
    assert codes == {name: "3" if name in ("conformance_cudnn", "conformance_sdpa") else "0" for name in PROOFS}
    assert done.returncode == 2


@pytest.mark.parametrize("stage", ["proofs", "kernels", "models", "timed", "races", "tune", "speed", "steps", "auto"])
def test_what_a_stage_names_is_there(stage, tmp_path):
    done = on_cuda(stage, str(tmp_path), "--dry-run")
    assert done.returncode == 0
    named = re.findall(r"[\w/.-]+\.py|plugins/\S+", done.stdout)
    assert all((Path(__file__).parents[1] / name).exists() for name in named), named


def test_a_stage_that_is_done_is_not_run_again(tmp_path):
    for stage in ("proofs", "speed"):
        (tmp_path / f"{stage}.done").touch()
    done = on_cuda("all", str(tmp_path), "--dry-run")
    lines = done.stdout.splitlines()
    assert lines[:2] == ["proofs: done before", "speed: done before"]
    assert [line.partition(":")[0] for line in lines[2:]] == ["steps", "auto", "tune", "tuned"]


@pytest.mark.parametrize("words", [[], ["all"], ["nonsense", "."], ["conformance", "."]])
def test_a_wrong_stage_is_refused_in_a_sentence(words):
    done = on_cuda(*words, "--dry-run")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_stage_runs_its_commands_writes_what_they_say_and_counts_failures(tmp_path):
    """With a stand-in for Python that fails wherever flex is measured."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\ncase "$*" in *sdpa,flex*) exit 3;; esac\n')
    python.chmod(0o755)
    done = on_cuda("speed", str(tmp_path / "out"), PYTHON=str(python))
    assert done.returncode == 1
    assert (tmp_path / "out" / "flex.txt").read_text().startswith("-m tfkit bench attention --device cuda")
    assert done.stdout.splitlines()[0].startswith("attention: exit code 0; ")
    assert done.stdout.splitlines()[1].startswith("flex: exit code 3; ")


def test_house():
    import house

    result = house.main(["--spec", str(Path(__file__).parents[1] / "specs" / "transformer-tiny.yaml")])
    assert result["entered"]["forward"]["modules"] <= result["entered"]["beam search"]["modules"] < result["tfkit"]["files"]
    assert result["entered"]["forward"]["lines"] < result["tfkit"]["lines"]


def test_packed_rows():
    import packed_rows

    result = packed_rows.main(["--rows", "200", "--tokens", "300", "--steps", "1"])
    assert set(result["tokens_per_second"]) == {"by length", "packed"}


def test_recorded(monkeypatch, tmp_path):
    """With a stand-in for the device."""
    import recorded

    import graph_stand_in
    from tfkit.generate import step_graphs
    from tfkit.nn.runtime import inputs

    monkeypatch.setattr(step_graphs, "check_device", lambda device: None)
    monkeypatch.setattr(step_graphs, "cuda_graph", graph_stand_in.capture)
    monkeypatch.setattr("tfkit.train.step.check_captured", lambda *facts: (True, []))
    monkeypatch.setattr(inputs, "_unread", lambda tensor: True)
    small = ["--device", "cpu", "--shape", "tiny", "--sentences", "2", "--tokens", "120", "--rows", "60", "--vocab", "300"]
    result = recorded.main([*small, "--rounds", "1", "--json", str(tmp_path)])
    assert {name.partition(", ")[2] for name in result["decoding"]["speed"]} == {"ordinary", "recorded"}
    assert result["training"]["speed"].keys() == {"ordinary", "recorded"}
    assert {path.name for path in tmp_path.iterdir()} == {"decoding.json", "training.json"}


def test_recorded_on_a_cpu(capsys):
    import recorded

    result = recorded.main(["--recorder", "--shape", "tiny", "--sentences", "1", "--rounds", "1"])
    assert "the steps in C" in result["decoding"]["speed"]
    assert "source and first token" in capsys.readouterr().out
