"""A run that was killed, interrupted or stopped resumes and reaches the weights of an undisturbed run, bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tfkit.errors import InputError, StoreError
from tfkit.files import file_record
from tfkit.nn.cpu import onednn
from tfkit.recipe import load_recipe
from tfkit.train import resume, train
from tfkit.train.checkpoint import checkpoints_in, write_checkpoint
from tfkit.train.interrupt import Interrupts
from translation_task import write_task

pytestmark = pytest.mark.xdist_group("resume")  # its module fixture is built once

FILES = ("model", "optimiser", "average")


def same(one: Path, other: Path) -> None:
    """Two runs ended with the same tensors, the same progress and the same log, times aside."""
    for name in FILES:
        mine, theirs = (load_file(checkpoints_in(run / "checkpoints")[-1] / f"{name}.safetensors") for run in (one, other))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine), name
    assert log(one) == log(other)
    states = [json.loads((checkpoints_in(run / "checkpoints")[-1] / "state.json").read_text()) for run in (one, other)]
    for state in states:
        del state["progress"]["seconds"]
    assert states[0] == states[1]


def log(run: Path) -> list[dict]:
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("finished")
    train(load_recipe(write_task(folder)), folder / "run")
    return folder / "run"


@pytest.fixture
def whole(finished, tmp_path):
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "whole"))


@pytest.mark.exhaustive
def test_fifty_kills_at_random_moments(task, tmp_path):
    script = Path(__file__).parent / "killed_run.py"
    task.write_text(task.read_text().replace("every_steps: 8", "every_steps: 1").replace("max_steps: 24", "max_steps: 40"))
    command = [sys.executable, str(script), str(task), str(tmp_path), "50", "7"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["found_at"]
    assert len(found) == 50
    assert len(set(found)) > 5, "the kills did not meet the run at different places"
    same(tmp_path / "undisturbed", tmp_path / "killed")


CHANGES = [
    [],
    ["batching.accumulate=3"],
    ["average=null", "optimiser=adamw", "clip_norm=0.5"],
    ["model.defaults.dropout=0.3", "activation_checkpointing=true", "keeping.every_steps=500"],
    ["precision=bfloat16"],
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("changes", CHANGES)
def test_half_and_half_is_whole(task, tmp_path, changes):
    train(load_recipe(task, changes), tmp_path / "whole")
    train(load_recipe(task, [*changes, "stopping.max_steps=11"]), tmp_path / "half")
    outcome = resume(tmp_path / "half", overrides=["stopping.max_steps=24"])
    assert outcome.progress.step == 24
    assert outcome.model.is_dir()
    places = [tmp_path / run / "checkpoints" / "step-24" for run in ("whole", "half")]
    names = [sorted(path.name for path in place.glob("*.safetensors")) for place in places]
    assert names[0] == names[1]
    for name in names[0]:
        mine, theirs = (load_file(place / name) for place in places)
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    steps = [[entry for entry in log(tmp_path / run) if entry["kind"] == "step"] for run in ("whole", "half")]
    assert steps[0] == steps[1]


@pytest.mark.slow
def test_half_and_half_is_whole_when_onednn_multiplies(task, tmp_path, monkeypatch):
    product, calls = onednn.probe(), []
    if product is None:
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(onednn, "PRODUCT", lambda *given: (calls.append(1), product(*given))[1])
    monkeypatch.setattr("tfkit.nn.cpu.linear.ENOUGH", 1)
    test_half_and_half_is_whole(task, tmp_path, [])
    assert len(calls) > 24 * 3 * 10


@pytest.mark.slow
def test_two_runs_are_the_same(task, tmp_path, whole):
    train(load_recipe(task), tmp_path / "again")
    same(whole, tmp_path / "again")


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_something_else_hears_is_left_to_it(monkeypatch):
    """Python knows such a handler as None, and could not put it back."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with Interrupts():
            pass
    finally:
        signal.signal(signal.SIGTERM, before)


def test_going_on_with_a_finished_run_changes_nothing(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")}
    outcome = resume(whole)
    assert outcome.progress.step == outcome.progress.validated == 24
    assert outcome.model.is_dir()
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")} == before


@pytest.fixture
def listening():
    """A process started in the background may ignore Ctrl-C, and then so does training."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("listening")
def test_ctrl_c_saves_and_goes_on(task, tmp_path, whole):
    class Interrupt:
        """Presses Ctrl-C in the middle of a step."""

        def __getattr__(self, name):
            return lambda *arguments: None

        def on_step_end(self, step):
            if step.step == 9:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(task, ["keeping.every_steps=500"]), tmp_path / "stopped", callbacks=[Interrupt()])
    assert [path.name for path in checkpoints_in(tmp_path / "stopped" / "checkpoints")] == ["step-9"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resume(tmp_path / "stopped", overrides=["keeping.every_steps=8"])
    same(whole, tmp_path / "stopped")


def damage(path: Path, kind: str) -> None:
    data = bytearray(path.read_bytes())
    if kind == "cut":
        data = data[:-5]
    elif kind == "altered":
        data[-5] ^= 1
    path.unlink()
    if kind != "missing":
        path.write_bytes(data)


@pytest.mark.slow
def test_a_damaged_checkpoint_that_was_passed_over_pushes_no_good_one_out(whole):
    damaged = whole / "checkpoints" / "step-24" / "model.safetensors"
    damaged.write_bytes(b"cut off")
    changes = ["keeping.last=1", "keeping.every_steps=3", "stopping.max_steps=20"]
    assert resume(whole, earlier=True, overrides=changes).progress.step == 20
    assert [path.name for path in checkpoints_in(whole / "checkpoints")] == ["step-20"]
    assert resume(whole, overrides=["stopping.max_steps=21"]).progress.step == 21


def test_a_checkpoint_is_replaced_whole_or_not_at_all(whole, monkeypatch):
    """The one at the end of a run is written again if the run resumes for a validation only."""
    path, names = whole / "checkpoints" / "step-24", []
    rename = Path.rename

    def refuse(draft, target):
        names.append(draft.name)
        if draft.suffix == ".draft":
            raise OSError("no more of it")
        return rename(draft, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(StoreError, match=r"TFK081 .*no more of it"):
            write_checkpoint(path, {"model.safetensors": {}}, {})
    assert len(names) == 3
    old = whole / "checkpoints" / ".step-24.abc.old"
    old.mkdir()
    path.rename(old / path.name)  # as a kill between the two renames leaves it
    assert resume(whole, overrides=["stopping.max_steps=25"]).progress.step == 25
    assert not list((whole / "checkpoints").glob(".step-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state.json": 1}, ": state.json: an object is expected"),
        ({"state.json": {}}, r": state.json.bytes: Field required"),
        ({"state.json": {"bytes": "9", "sha256": "0" * 64}}, ": state.json.bytes: Input should be a valid integer"),
        ({"state.json": {"bytes": 9, "sha256": "0"}}, ": state.json.sha256: String should match pattern"),
        ({"../../recipe.yaml": {"bytes": 9, "sha256": "0" * 64}}, " names the file .*, which is elsewhere"),
        ({"other/model.safetensors": {"bytes": 9, "sha256": "0" * 64}}, " names the file .*, which is elsewhere"),
        ({"shards/../state.json": {"bytes": 9, "sha256": "0" * 64}}, " names the file .*, which is elsewhere"),
        ({"/etc/hostname": {"bytes": 9, "sha256": "0" * 64}}, " names the file .*, which is elsewhere"),
    ],
)
def test_a_manifest_that_was_altered_is_named(whole, change, message):
    path = whole / "checkpoints" / "step-24" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StoreError, match=f"TFK082 {path}{message}"):
        resume(whole)


def rewritten(checkpoint: Path, name: str, write) -> None:
    """A rewritten file that the manifest lists."""
    write(checkpoint / name)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps(manifest | {name: file_record(checkpoint / name)}))


@pytest.mark.slow
@pytest.mark.parametrize("change", ["missing", "another one", "another shape", "another dtype"])
@pytest.mark.parametrize("file", FILES)
def test_tensors_of_another_model_are_reported_and_not_used(whole, file, change):
    latest = checkpoints_in(whole / "checkpoints")[-1]
    tensors = load_file(latest / f"{file}.safetensors")
    name = next(name for name, value in tensors.items() if value.dim() > 0)
    value = tensors.pop(name)
    anew = {
        "another one": {name: value, f"x{name}": value.clone()},
        "another shape": {name: value[:1]},
        "another dtype": {name: value.half()},
    }
    rewritten(latest, f"{file}.safetensors", lambda path: save_file({**tensors, **anew.get(change, {})}, path))
    with pytest.raises(StoreError, match=rf"TFK082 .*{file}.safetensors: `x?{name}` is .*, this run needs "):
        resume(whole)
    assert resume(whole, earlier=True).progress.step == 24


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("progress", 3, "progress: "),
        ("progress.best_models", 1, "progress.best_models: Input should be a valid list"),
        ("progress.best_models", [[1.0]], "progress.best_models.0.1: Field required"),
        ("progress.best_models", [[1.0, 25]], "step 25 was validated, but only 24 were made"),
        ("progress.best_models", [[1.0, "../../x"]], "progress.best_models.0.1: Input should be a valid integer"),
        ("progress.step", 25, "is that of step 25, not of step-24"),
        ("progress.step", 24.0, "progress.step: "),
        ("progress.step", "24", "progress.step: Input should be a valid integer"),
        ("progress.step", 10**400, "progress.step: "),
        ("progress.epoch", 0, "progress.epoch: Input should be greater than or equal to 1"),
        ("progress.batch", -1, "progress.batch: Input should be greater than or equal to 0"),
        ("progress.batch", 10**9, "`progress.batch` is 1000000000, epoch "),
        ("progress.seconds", 1e300, "progress.seconds: "),
        ("progress.more", 1, "progress.more: Extra inputs are not permitted"),
        ("digests", [], "digests: Input should be a valid dictionary"),
        ("digests.spec", None, "digests.spec: Input should be a valid string"),
        ("scaler", [], "scaler"),
        ("scaler", {"scale": -1}, "scaler"),
        (
            "scaler",
            {"scale": 1.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 9, "_growth_tracker": 0},
            "`scaler` is not expected",
        ),
        ("average_steps", None, "`average_steps` is missing"),
        ("average_steps", 2.5, "average_steps: Input should be a valid integer"),
        ("tensors", {"model.safetensors": {"x": [-1]}}, "tensors.model.safetensors.x.0: "),
    ],
)
def test_a_state_that_was_altered_is_named(whole, where, value, message):
    latest = checkpoints_in(whole / "checkpoints")[-1]
    state = json.loads((latest / "state.json").read_text())
    *path, last = where.split(".")
    part = state
    for name in path:
        part = part[name]
    part[last] = value
    rewritten(latest, "state.json", lambda path: path.write_text(json.dumps(state)))
    with pytest.raises(StoreError) as caught:
        resume(whole)
    assert str(caught.value).startswith(f"TFK082 {latest / 'state.json'}")
    assert message in str(caught.value)
    assert resume(whole, earlier=True).progress.step == 24


def test_tensors_that_no_manifest_lists_are_not_read(whole):
    shutil.copy(
        whole / "checkpoints" / "step-16" / "model.safetensors", whole / "checkpoints" / "step-24" / "other.safetensors"
    )
    with pytest.raises(StoreError, match=r"TFK082 .*manifest.json does not list other.safetensors"):
        resume(whole)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["cut", "altered", "missing"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "state.json", "manifest.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used_when_asked(whole, kind, name):
    latest = checkpoints_in(whole / "checkpoints")[-1]
    damage(latest / name, kind)
    with pytest.raises(StoreError) as caught:
        resume(whole)
    assert str(latest / name) in str(caught.value)
    assert "`--earlier` uses the one before it" in str(caught.value)
    assert resume(whole, earlier=True).progress.step == 24
    assert resume(whole).progress.step == 24


def test_the_last_line_of_the_log_where_it_was_cut_off_is_left_out(whole):
    entries = log(whole)
    with (whole / "log.jsonl").open("ab") as file:
        file.write(b'{"kind": "st')
    resume(whole)
    assert log(whole) == entries


LINE = {"kind": "step", "step": 3, "epoch": 1, "loss": 1.0, "nll": 1.0, "rate": 0.1, "norm": 1.0}
LINE |= {"source_tokens": 5, "target_tokens": 5, "seconds": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff\xfe", "Invalid JSON"),
        (b"24", "Input should be"),
        (b"", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON: recursion limit exceeded"),
        (b'{"step": 1}', "Unable to extract tag using discriminator"),
        (json.dumps({**LINE, "kind": "end"}).encode(), "does not match any of the expected tags"),
        (json.dumps({**LINE, "step": 0}).encode(), "`step`: Input should be greater than or equal to 1"),
        (json.dumps({**LINE, "step": 10**400}).encode(), "`step`: Input should be"),
        (json.dumps({**LINE, "step": 2.5}).encode(), "`step`: Input should be"),
        (json.dumps({**LINE, "step": "<b>"}).encode(), "`step`: Input should be a valid integer"),
        (json.dumps({**LINE, "epoch": "<script>"}).encode(), "`epoch`: Input should be a valid integer"),
        (json.dumps({**LINE, "loss": 1e300}).encode(), "`loss`: Value error, it is larger than 1e+39"),
        (json.dumps({**LINE, "more": 1}).encode(), "`more`: Extra inputs are not permitted"),
        (json.dumps({key: value for key, value in LINE.items() if key != "step"}).encode(), "`step`: Field required"),
    ],
)
def test_a_line_of_the_log_that_was_altered_is_named(whole, line, reason):
    path = whole / "log.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:3], line, *lines[3:], b""]))
    with pytest.raises(StoreError) as caught:
        resume(whole)
    (diagnostic,) = caught.value.diagnostics
    assert str(diagnostic).startswith(f"{path}:4:1: TFK082 this line is no entry of the log of a run: ")
    assert reason in str(diagnostic)
    assert "remove the line, or the file" in str(diagnostic)
    path.unlink()
    assert resume(whole).progress.step == 24


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("data/train.arrow", "training data"),
        ("data/validation.arrow", "validation data"),
        ("spec.yaml", "spec"),
        ("tokeniser.json", "tokeniser source and tokeniser target"),
    ],
)
def test_a_resumed_run_keeps_its_inputs(whole, file, message):
    data = (whole / file).read_bytes()
    old, new = (b"relu", b"gelu") if file == "spec.yaml" else (b"hundo", b"hudno")
    if file == "tokeniser.json":
        old, new = b'"byte_fallback":false', b'"byte_fallback":true'
    assert old in data or "arrow" in file
    (whole / file).write_bytes(data.replace(old, new) if old in data else data[:-300] + bytes([data[-300] ^ 1]) + data[-299:])
    with pytest.raises(StoreError) as caught:
        resume(whole)
    assert "TFK113" in str(caught.value) or "TFK082" in str(caught.value)
    if "TFK113" in str(caught.value):
        assert f"was started with another {message}" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "model.defaults.dropout=0.7",
        "data.source=/nonexistent/other.en",
        "data.held_out=5",
        "data.held_out=12",
        "tokeniser.vocab_size=90",
        "pretrained=/nonexistent",
        "validation.beams=4",
        "batching.tokens=128",
        "batching.tokens=64",
        "seed=1",
        "optimiser.eps=1e-8",
        "loss.label_smoothing=0.0",
        "average=null",
        "validation.metric=bleu",
    ],
)
def test_overrides_that_affect_weights_or_nothing_are_refused(whole, change):
    recipe = (whole / "recipe.yaml").read_bytes()
    with pytest.raises(InputError, match=f"TFK111 a resumed run keeps its `{change.split('.')[0].split('=')[0]}`"):
        resume(whole, overrides=["stopping.max_steps=30", change])
    assert (whole / "recipe.yaml").read_bytes() == recipe


def test_allowed_changes_are_used_and_saved(whole):
    changes = ["stopping.max_steps=26", "keeping.last=1", "validation.every_steps=5", "name=other", "keeping.every_steps=3"]
    assert resume(whole, overrides=changes).progress.step == 26
    recipe = load_recipe(whole / "recipe.yaml")
    assert (recipe.stopping.max_steps, recipe.keeping.last, recipe.validation.every_steps, recipe.name) == (26, 1, 5, "other")
    assert [path.name for path in checkpoints_in(whole / "checkpoints")] == ["step-26"]


def test_a_directory_without_a_run_is_reported(tmp_path):
    with pytest.raises(InputError, match=r"TFK111 .*holds no run"):
        resume(tmp_path)
