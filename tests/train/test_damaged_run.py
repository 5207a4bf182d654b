"""Of a run whose files were altered, cut off or removed, the file is named and nothing wrong is used."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tfkit import StoreError
from tfkit.files import file_record
from tfkit.train import average_checkpoints, resume
from tfkit.train.checkpoint import checkpoints_in
from tfkit.view.training import Lines

pytestmark = pytest.mark.xdist_group("resume")  # its run is trained once

FILES = ("model", "optimiser", "average")
NEXT = ["stopping.max_steps=17"]
"""One step after the checkpoint before the last one: a run that begins there ends with it."""


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
    assert resume(whole, earlier=True, overrides=NEXT).progress.step == 17


@pytest.mark.parametrize("count", [200, 20_000])
@pytest.mark.parametrize("file", FILES)
def test_further_tensors_are_counted_before_one_is_read(whole, tmp_path, monkeypatch, file, count):
    latest = checkpoints_in(whole / "checkpoints")[-1]
    further = {f"x{number}/step": torch.zeros(0) for number in range(count)}
    rewritten(latest, f"{file}.safetensors", lambda path: save_file({**load_file(path), **further}, path))
    monkeypatch.setattr("tfkit.train.checkpoint.load_file", None)
    few = r"has [0-9]+ tensors, and a checkpoint of [0-9]+ weights has at most [0-9]+"
    message = rf"TFK082 .*{file}.safetensors {few if count == 200 else 'holds no tensors .* at most [0-9,]+ are expected'}"
    for work in (lambda: resume(whole), lambda: average_checkpoints(whole, 1, tmp_path / "mean")):
        with pytest.raises(StoreError, match=message):
            work()


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
        ("progress.step", 10**300, "progress.step: "),
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
    assert resume(whole, earlier=True, overrides=NEXT).progress.step == 17


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
    assert resume(whole, earlier=True, overrides=NEXT).progress.step == 17
    assert resume(whole, overrides=["stopping.max_steps=18"]).progress.step == 18


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("corpora.train.kept", 10**15, r": corpora.train: `read` is 108, and 1,000,000,000,000,000 rows were kept"),
        ("corpora.train", {"read": 9, "kept": 9}, r": `corpora.train` has 9 rows, and train.arrow has 108;"),
        (
            "corpora.validation.tokens.target",
            7,
            r": `corpora.validation` has 7 tokens of target, and",
        ),
        ("labels", ["a", "b"], r": `labels` is there; one of the two was altered"),
        ("pairs", True, r": `pairs` is there; one of the two was altered"),
        ("corpora.validation", None, r": it has no counts of validation.arrow, and the file is there;"),
        (
            "corpora.train.left_out",
            {"x" * 999: 0},
            r": corpora.train.left_out.x{80}.*: String should have",
        ),
    ],
)
def test_counts_of_a_corpus_are_those_of_its_rows(whole, place, value, message):
    path = whole / "data" / "facts.json"
    facts = json.loads(path.read_text())
    *parts, last = place.split(".")
    part = facts
    for name in parts:
        part = part[name]
    if value is None:
        del part[last]
    else:
        part[last] = value
    path.write_text(json.dumps(facts))
    with pytest.raises(StoreError, match=f"TFK082 {path}{message}"):
        resume(whole)


def test_a_long_text_of_a_run_is_cut_where_it_is_printed(whole, capsys):
    path = whole / "data" / "facts.json"
    facts = json.loads(path.read_text())
    reasons = {f"{number:03}{'x' * 197}": 0 for number in range(20)}
    facts["corpora"]["train"] |= {"left_out": reasons, "first": reasons}
    path.write_text(json.dumps(facts))
    resume(whole, callbacks=[Lines()])
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("train: 108 of 108 rows; left out: 0 000xxx")
    assert first[2_000:] == "... (4,432 characters)"


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


@pytest.mark.slow
@pytest.mark.parametrize("steps", [[5, 4], [1] * 200])
def test_entries_of_the_log_come_one_after_the_other(whole, steps):
    path = whole / "log.jsonl"
    path.write_text("".join(json.dumps({**LINE, "step": step}) + "\n" for step in steps))
    with pytest.raises(StoreError, match=r"log.jsonl:(2|102):1: .*: step (4|1) does not come after step (5|1); "):
        resume(whole)


@pytest.mark.slow
def test_what_follows_the_step_of_the_checkpoint_is_not_read(whole):
    path = whole / "log.jsonl"
    lines = path.read_bytes()
    path.write_bytes(lines + json.dumps({**LINE, "step": 25}).encode() + b"\nwhatever\n")
    assert resume(whole).progress.step == 24
    assert path.read_bytes() == lines


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
