"""A run that is resumed says which files of its corpus changed since it began, and trains on its own copy."""

import os
import shutil

import pytest

from image_files import bars, write_idx, write_recipe
from tfkit import load_recipe
from tfkit.data import read_facts
from tfkit.data.sources import MOST_FILES, Source as Recorded, changes_of_files, sources_of
from tfkit.train import resume, train
from translation_task import write_task

pytestmark = pytest.mark.slow


class Warnings:
    """Keeps the warnings of a run."""

    def __init__(self):
        self.found = []

    def on_warning(self, diagnostics):
        self.found += map(str, diagnostics)

    def __getattr__(self, name):
        return lambda *given: None


def resumed(run, steps):
    """What a resumed run says about its corpus, and the weights at its end."""
    kept = Warnings()
    outcome = resume(run, overrides=[f"stopping.max_steps={steps}"], callbacks=[kept])
    return [line for line in kept.found if "TFK131" not in line], (outcome.model / "model.safetensors").read_bytes()


@pytest.fixture
def started(tmp_path):
    recipe = write_task(tmp_path)
    train(load_recipe(recipe, ["stopping.max_steps=4", "keeping.every_steps=2"]), tmp_path / "run")
    return tmp_path


def test_a_file_that_changed_or_is_gone_is_named_and_training_goes_on(started):
    source, target, run = started / "train.src", started / "train.trg", started / "run"
    shutil.copytree(run, started / "other")
    said, usual = resumed(started / "other", 6)
    assert said == []
    before = source.stat()
    source.write_text(source.read_text() + "the dog\n")
    target.unlink()
    said, weights = resumed(run, 6)
    rest = f"since this run began; training goes on with the rows that it read then, in {run / 'data'}; start a new run"
    assert said == [
        f"TFK130 data.source: {source} has changed ({before.st_size:,} bytes then, {source.stat().st_size:,} now) {rest} "
        "to train on other data",
        f"TFK130 data.target: {target} is gone {rest} to train on other data",
    ]
    assert weights == usual


def test_the_same_content_at_another_time_is_no_change_and_another_content_of_the_size_is(started):
    source, run = started / "train.src", started / "run"
    os.utime(source, ns=(1, 1))
    assert resumed(run, 5)[0] == []
    source.write_text(source.read_text().replace("dog", "cat"))
    os.utime(source, ns=(1, 1))
    [said] = resumed(run, 6)[0]
    assert f"{source} has changed since this run began" in said


def test_the_command_prints_the_warning_once(started, tfkit):
    (started / "train.trg").unlink()
    done = tfkit("train", "--resume", str(started / "run"), "--set", "stopping.max_steps=5")
    assert done.code == 0
    assert (done.out + done.err).count("TFK130 data.target: ") == 1


def test_files_and_folders_of_images_are_compared(tmp_path):
    write_idx(tmp_path, packed=False)
    files = [f"data.images={tmp_path / 'images.idx'}", f"data.labels={tmp_path / 'labels.idx'}", "stopping.max_steps=2"]
    recipe = load_recipe(write_recipe(tmp_path), files)
    train(recipe, tmp_path / "run")
    assert set(read_facts(tmp_path / "run" / "data").sources) == {"images", "labels"}
    (tmp_path / "labels.idx").unlink()
    [said] = resumed(tmp_path / "run", 3)[0]
    assert f"TFK130 data.labels: {tmp_path / 'labels.idx'} is gone since" in said


def test_of_a_folder_names_and_sizes_are_compared(tmp_path):
    for label in ("a", "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        (tmp_path / "images" / label / "1.png").write_bytes(bars(1)[0][0].tobytes())
    recipe = load_recipe(write_recipe(tmp_path), [f"data.images={tmp_path / 'images'}"])
    recorded = {name: Recorded(**facts) for name, facts in sources_of(recipe).items()}
    assert set(recorded) == {"images"}
    assert changes_of_files(recipe, recorded, tmp_path) == []
    (tmp_path / "images" / "a" / "1.png").rename(tmp_path / "images" / "b" / "2.png")
    [said] = changes_of_files(recipe, recorded, tmp_path)
    assert "images has changed since this run began" in said.message


def test_a_run_from_elsewhere_cannot_make_resuming_endless(tmp_path, monkeypatch):
    """A sparse file of the size that the run records is not read; neither is a folder without end."""
    (tmp_path / "endless").touch()
    os.truncate(tmp_path / "endless", 1 << 40)
    recipe = load_recipe(write_task(tmp_path), [f"data.source={tmp_path / 'endless'}", "data.target=/"])
    recorded = {name: Recorded(bytes=1 << 40, sha256="0" * 64, modified=1) for name in ("source", "target")}
    monkeypatch.setattr("tfkit.data.sources.MOST_FILES", 100)
    first, second = changes_of_files(recipe, recorded, tmp_path)
    assert "endless was modified since this run began" in first.message
    assert "cannot be read any more (it holds more than 100 files)" in second.message
    assert MOST_FILES == 100_000
