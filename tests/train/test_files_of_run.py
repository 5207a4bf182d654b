"""Whatever a file of a run holds, it is read or refused with its name: never an exception of another kind, and never a wait."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tfkit import TfkitError, load_recipe
from tfkit.data import read_facts
from tfkit.files import Listing, check_files, file_record, read_model
from tfkit.text import model_in
from tfkit.train import resume, train
from tfkit.train.checkpoint import read_checkpoint
from tfkit.train.checkpoint_state import State
from tfkit.train.digests import read_digests
from tfkit.train.log import append_log, read_log
from tfkit.train.run_files import Holder
from translation_task import write_task

pytestmark = pytest.mark.xdist_group("files_of_run")  # its module fixture is built once

FEW = ["stopping.max_steps=3", "keeping.every_steps=2", "validation.every_steps=2"]
LAST = "checkpoints/step-3"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    train(load_recipe(write_task(folder), FEW), folder / "run")
    holder = {"process": 7, "host": "here"}
    (folder / "run" / "run.lock.json").write_text(json.dumps(holder))
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


READERS = {
    "digests.json": lambda path: read_digests(path.parent),
    "data/facts.json": lambda path: read_facts(path.parent),
    "log.jsonl": read_log,
    f"{LAST}/state.json": lambda path: read_model(path, State),
    f"{LAST}/manifest.json": lambda path: check_files(path, read_model(path, Listing).root),
    "models/best.json": lambda path: model_in(path.parents[1]),
    "run.lock.json": lambda path: read_model(path, Holder),
    "recipe.yaml": lambda path: load_recipe(path),
}
SMALL = [*READERS, "spec.yaml", "tokeniser.json", f"{LAST}/model.safetensors", "data/train.arrow", "data/validation.arrow"]
MASKS = (0x01, 0x80)


def refusal(work) -> TfkitError | None:
    """What was refused, None where nothing was."""
    try:
        work()
    except TfkitError as error:
        return error
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_byte_that_was_flipped_anywhere_is_read_or_refused(run, name):
    path = run / name
    data = path.read_bytes()
    refused = 0
    for at in range(len(data)):
        for mask in MASKS:
            path.write_bytes(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            error = refusal(lambda: READERS[name](path))
            refused += error is not None
            assert error is None or str(run) in str(error), (at, mask)
    assert refused > len(data)  # the second mask leaves no file in ASCII
    path.write_bytes(data)
    READERS[name](path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_run_with_a_flipped_byte_goes_on_or_is_refused(run, name):
    path = run / name
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 8)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        error = refusal(lambda: resume(run))
        assert error is None or str(run) in str(error), at
        path.write_bytes(data)
    assert resume(run).progress.step == 3


@pytest.mark.slow
@pytest.mark.parametrize("at", range(0, 60, 3))
def test_a_state_of_which_the_manifest_knows_goes_on_or_is_refused(run, at):
    """A byte in each twentieth of the file, or so."""
    path = run / LAST / "state.json"
    data = bytearray(path.read_bytes())
    data[at * len(data) // 60] ^= 1
    path.write_bytes(data)
    manifest = json.loads((run / LAST / "manifest.json").read_text())
    (run / LAST / "manifest.json").write_text(json.dumps(manifest | {"state.json": file_record(path)}))
    error = refusal(lambda: resume(run))
    assert error is None or error.diagnostics[0].code in ("TFK082", "TFK113")


def hole(path: Path) -> None:
    """100 MB of nothing."""
    with path.open("wb") as file:
        file.truncate(100 << 20)


PUT = {
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "named pipe": os.mkfifo,
    "directory": Path.mkdir,
    "empty": Path.touch,
    "list": lambda path: path.write_text("[]"),
    "object": lambda path: path.write_text("{}"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "deep object": lambda path: path.write_text('{"a":' * 100_000),
    "100 MB": hole,
    "100 MB in a string": lambda path: path.write_bytes(b'"' + b"a" * (100 << 20)),
}
NOTHING = {("log.jsonl", kind) for kind in ("empty", "list", "object", "deep", "deep object")} | {
    ("run.lock.json", kind) for kind in PUT
}
"""A log of nothing, or of a line without an end, is that of a killed process; who held the run is not asked."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", PUT)
@pytest.mark.parametrize("name", SMALL)
def test_something_else_in_place_of_a_file_is_refused(run, name, kind):
    path = run / name
    path.unlink()
    PUT[kind](path)
    misplaced = kind in ("link", "named pipe", "directory")
    if (name, kind) in NOTHING and not misplaced:
        assert resume(run).progress.step == 3
        return
    if name == "models/best.json" and kind != "link":  # rewritten by a resumed run
        with pytest.raises(TfkitError, match=r"TFK082 .*best.json"):
            model_in(run)
        return
    with pytest.raises(TfkitError) as caught:
        resume(run)
    assert path.name in str(caught.value) or caught.value.diagnostics[0].code in ("TFK104", "TFK113"), str(caught.value)


def test_the_size_of_weights_is_compared_before_they_are_read(run, monkeypatch):
    """A file of 8 TB, nearly all of which is a hole."""
    path = run / LAST / "model.safetensors"
    with path.open("r+b") as file:
        try:
            file.truncate(8 << 40)
        except OSError:
            pytest.skip("no file here can be this large")
    with pytest.raises(TfkitError, match=r"TFK082 .*model.safetensors has 8,796,093,022,208 bytes, but "):
        read_checkpoint(run / LAST)


@pytest.mark.parametrize(
    "name", ["../../x", "/etc", "..", ".", "", "step-2/../step-2", "step-2\0", "checkpoints/step-2", "a\\b", 7, None]
)
def test_the_best_model_is_a_plain_child(run, name):
    best = {"model": name, "metric": "loss", "score": 1.0}
    (run / "models" / "best.json").write_text(json.dumps(best))
    with pytest.raises(TfkitError, match=r"TFK082 .*best.json"):
        model_in(run)


def test_the_best_model_is_no_link(run):
    folder = run / "models"
    (name,) = [path.name for path in folder.glob("step-*")]
    (folder / name).rename(run / "aside")
    (folder / name).symlink_to(run / "aside")
    with pytest.raises(TfkitError, match=r"TFK082 .*best.json .* is a link"):
        model_in(run)
    folder.rename(run / "others")
    folder.symlink_to(run / "others")
    with pytest.raises(TfkitError, match=r"TFK082 .*models is a link"):
        model_in(run)


def test_the_name_of_the_best_model_is_that_of_a_file(run):
    best = run / "models" / "best.json"
    best.write_text(json.dumps({**json.loads(best.read_text()), "model": "x" * 900_000}))
    with pytest.raises(TfkitError) as refused:
        model_in(run)
    assert "models/best.json: model: String should match pattern" in str(refused.value)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("folder", ["checkpoints", "models"])
def test_a_run_with_very_many_checkpoints_is_refused(run, folder):
    for number in range(10_000):
        (run / folder / f"step-{100 + number}").mkdir()
    with pytest.raises(TfkitError, match=f"{folder} has more than 10,000 entries"):
        resume(run)


def test_a_log_with_another_name_is_made_one_of_its_own(tmp_path):
    """`cp -al` copies a run by hard links: what one run writes is not in the other."""
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    entry = {"kind": "step", "step": 1}
    append_log(one, entry)
    os.link(one, two)
    append_log(two, {**entry, "step": 2})
    assert (one.read_text().count("\n"), two.read_text().count("\n")) == (1, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.jsonl", "two.jsonl"]
