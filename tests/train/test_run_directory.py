"""What tfkit reads, follows and removes in the directory of a run, and who may work in it."""

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tfkit import InputError, StoreError, load_recipe
from tfkit.train import average_checkpoints, resume, train
from tfkit.train.checkpoint import checkpoints_in
from tfkit.train.run_files import locked
from translation_task import write_task

pytestmark = pytest.mark.xdist_group("run_directory")  # its module fixture is built once

FEW = ["stopping.max_steps=9", "keeping.every_steps=4"]


def everything(directory: Path) -> dict[str, bytes]:
    """The content of every file by its path."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of nine steps that can be resumed."""
    folder = tmp_path_factory.mktemp("finished")
    train(load_recipe(write_task(folder), FEW), folder / "run")
    (folder / "run" / "tensorboard").mkdir()
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def victim(tmp_path):
    """A directory elsewhere, with things that look like those of a run."""
    place = tmp_path / "victim"
    for name in ("notes.txt", "step-1/model.safetensors", "step-2/important.txt", "model.safetensors", "train.arrow"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("mine")
    return place


PLACES = [
    "checkpoints", "models", "data", "tensorboard", "checkpoints/step-7", "models/step-7", "checkpoints/step-9/shards",
    "checkpoints/.step-1.x.old", "checkpoints/.step-1.x.draft", "models/.step-1.x.old",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_no_link_to_a_directory_is_followed(run, victim, place):
    before, path = everything(victim), run / place
    if path.is_dir():
        shutil.rmtree(path)
    path.symlink_to(victim)
    with pytest.raises(StoreError) as caught:
        resume(run, overrides=["stopping.max_steps=12"])
    assert f"TFK082 {path} is a link, and no link is followed inside a run" in str(caught.value)
    assert everything(victim) == before


FILES = [
    "recipe.yaml", "spec.yaml", "tokeniser.json", "digests.json", "log.jsonl", "curve.html", "run.lock", "run.lock.json",
    "not-finite-step-10.safetensors", "data/train.arrow", "data/facts.json", "checkpoints/step-9/state.json",
    "checkpoints/step-9/manifest.json", "checkpoints/step-9/model.safetensors", "models/best.json",
    "models/step-9/versions.json", "tensorboard/events.out.tfevents.1.here.1.0",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("there", [True, False], ids=["link", "dangling link"])
@pytest.mark.parametrize("name", FILES)
def test_no_link_to_a_file_is_followed(run, tmp_path, name, there):
    path, target = run / name, tmp_path / "elsewhere"
    if there:
        target.write_bytes(path.read_bytes() if path.exists() else b"mine")
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    before = target.read_bytes() if there else None
    with pytest.raises((StoreError, InputError)) as caught:
        resume(run, overrides=["stopping.max_steps=12"])
    assert caught.value.diagnostics[0].code in ("TFK082", "TFK111")
    assert there or not target.exists()
    assert not there or target.read_bytes() == before


def test_a_folder_with_very_many_entries_is_refused(run, tmp_path):
    for number in range(10_000):
        (run / "checkpoints" / f"step-{number + 100}").mkdir()
    message = f"TFK082 {run / 'checkpoints'} has more than 10,000 entries, the limit of a folder of a run; remove"
    for work in (lambda: resume(run), lambda: average_checkpoints(run, None, tmp_path / "mean")):
        with pytest.raises(StoreError, match=message):
            work()


def test_many_empty_checkpoints_are_not_all_tried(run):
    for number in range(300):
        (run / "checkpoints" / f"step-{number + 100}").mkdir()
    with pytest.raises(StoreError, match=r"step-300 cannot be used$") as caught:
        resume(run, earlier=True)
    assert "step-300/manifest.json cannot be read" in str(caught.value)


def test_deep_folders_that_tfkit_did_not_write_are_left_alone(run, monkeypatch):
    for name in ("models/step-9", "checkpoints/step-9"):
        monkeypatch.chdir(run / name)
        for _ in range(1_200):  # more than Python can call in a row
            os.mkdir("x")
            os.chdir("x")
    monkeypatch.chdir(run.parent)
    try:
        assert resume(run).progress.step == 9
    finally:
        subprocess.run(["rm", "-r", run], check=True)  # pytest could not


def test_no_link_is_followed_where_checkpoints_are_averaged(run, tmp_path):
    (run / "checkpoints" / "step-9" / "state.json").unlink()
    (run / "checkpoints" / "step-9" / "state.json").symlink_to("/etc/hostname")
    with pytest.raises(StoreError, match=r"TFK082 .*state.json is a link"):
        average_checkpoints(run, None, tmp_path / "mean")


@pytest.mark.slow
def test_a_link_that_the_user_names_is_followed(task, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    train(load_recipe(task, FEW), tmp_path / "link")
    assert (tmp_path / "other" / "recipe.yaml").is_file()
    assert resume(tmp_path / "link", overrides=["stopping.max_steps=10"]).progress.step == 10
    assert (tmp_path / "link").is_symlink()


def test_foreign_files_are_kept(run):
    """In drafts of a process that was killed, in checkpoints and models that go, and beside them."""
    kept = [
        "notes.txt", "checkpoints/notes.txt", "checkpoints/step-8/notes.txt", "checkpoints/step-8/deep/notes.txt",
        "checkpoints/step-3/notes.txt", "models/step-3/notes.txt", "checkpoints/step-²/model.safetensors",
        "checkpoints/.step-1.abc.draft/notes.txt", "checkpoints/.step-1.abc.old/notes.txt", "models/.other.draft/spec.yaml",
        "checkpoints/.step-1.abc.old/step-8/notes.txt", "checkpoints/.step-1.abc.old/elsewhere/model.safetensors",
    ]  # fmt: skip
    gone = ["checkpoints/.step-1.abc.draft/model.safetensors", "checkpoints/step-3/state.json", "models/step-3/spec.yaml"]
    for name in [*kept, *gone]:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("mine")
    (run / "latest").symlink_to(run / "models")
    assert resume(run, overrides=["stopping.max_steps=13", "keeping.last=1"]).progress.step == 13
    assert all((run / name).read_text() == "mine" for name in kept)
    assert not any((run / name).exists() for name in gone)
    assert (run / "latest").is_symlink()


def test_a_replaced_directory_is_restored(run):
    aside = run / "checkpoints" / ".step-9.abc.old"
    aside.mkdir()
    (run / "checkpoints" / "step-9").rename(aside / "step-9")
    assert resume(run).progress.step == 9
    assert not aside.exists()


@pytest.mark.parametrize("name", ["notes.txt", "data/mine.txt", "data/train.arrow/x", "tokeniser.json/x"])
def test_foreign_files_in_an_unfinished_preparation_are_refused_and_kept(task, tmp_path, name):
    directory = tmp_path / "run"
    (directory / name).parent.mkdir(parents=True)
    (directory / name).write_text("mine")
    (directory / "unfinished-preparation").write_text("")
    before = everything(directory)
    with pytest.raises(StoreError, match=rf"TFK080 {directory} exists and is not empty: {name.removesuffix('/x')}"):
        train(load_recipe(task), directory)
    assert everything(directory) == before


@pytest.mark.parametrize("name", ["data", "spec.yaml", "recipe.yaml"])
def test_a_directory_that_no_preparation_has_marked_is_refused(task, tmp_path, name):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / name).mkdir() if name == "data" else (directory / name).write_text("mine")
    with pytest.raises(StoreError, match="TFK080"):
        train(load_recipe(task), directory)
    assert [path.name for path in directory.iterdir()] == [name]


def test_a_failed_preparation_removes_only_its_own_files(task, tmp_path, monkeypatch):
    def fail(*given):
        (tmp_path / "run" / "notes.txt").write_text("mine")
        (tmp_path / "run" / "data" / "notes.txt").write_text("mine")
        raise KeyboardInterrupt

    monkeypatch.setattr("tfkit.train.preparation.write_recipe", fail)
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(task), tmp_path / "run")
    assert set(everything(tmp_path / "run")) == {"notes.txt", "data/notes.txt"}


@pytest.mark.slow
def test_a_locked_run_is_neither_started_nor_changed(task, run, tmp_path):
    """Also if the process that holds it has not written its id."""
    new = tmp_path / "new"
    new.mkdir()
    for directory, work in ((run, lambda: resume(run)), (new, lambda: train(load_recipe(task), new))):
        with locked(directory):
            before = everything(directory)
            with pytest.raises(InputError, match=f"TFK121 {directory} is in use: process {os.getpid()} on "):
                work()
            assert everything(directory) == before
            (directory / "run.lock.json").write_text("{")
            with pytest.raises(InputError, match=f"TFK121 {directory} is in use: another process works on it"):
                work()
    assert resume(run).progress.step == 9
    assert [path.name for path in checkpoints_in(run / "checkpoints")] == ["step-8", "step-9"]


def test_the_lock_of_a_killed_process_is_no_obstacle(run):
    (run / "run.lock").touch()
    (run / "run.lock.json").write_text(json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
    assert resume(run).progress.step == 9


def test_a_lock_that_has_another_name_leaves_the_other_file_as_it_is(run, tmp_path):
    other = tmp_path / "important.txt"
    other.write_text("words")
    (run / "run.lock").unlink()
    os.link(other, run / "run.lock")
    with locked(run):
        assert os.stat(run / "run.lock").st_nlink == 1
        os.link(run / "run.lock", tmp_path / "second")
        with pytest.raises(InputError, match="TFK121"), locked(run):
            pass
    assert other.read_text() == "words"


def test_a_lock_that_cannot_be_made_is_reported(run):
    (run / "run.lock").unlink()
    (run / "run.lock").mkdir()
    with pytest.raises(StoreError, match=r"TFK082 .*run.lock is not a regular file"):
        resume(run)
