"""Of shards that were damaged, or that do not hold all that was written, nothing is read."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from tfkit import StoreError
from tfkit.files import file_record
from tfkit.train import average_checkpoints, resume
from tfkit.train.checkpoint import checkpoints_in
from tfkit.train.distributed import sharded_checkpoint as shards
from tiers import EVERY_CASE
from translation_task import write_task

pytestmark = [pytest.mark.xdist_group("several_processes"), pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def written(tmp_path_factory, fork_jobs):
    """A run of two processes with the weights sharded, whose checkpoints are of the steps 8 and 12."""
    folder = tmp_path_factory.mktemp("written")
    changes = ["batching.accumulate=4", "stopping.max_steps=12"]
    job = {"recipe": str(write_task(folder)), "directory": str(folder / "run"), "overrides": changes, "fsdp": True}
    found, code, words = fork_jobs([job], folder)
    assert (found, code) == ([[[12]]] * 2, 0), words
    return folder / "run"


@pytest.fixture
def sharded(written, tmp_path):
    """A copy of a run with shards, to be damaged, with its last checkpoint and the shards of that."""
    run = shutil.copytree(written, tmp_path / "sharded")
    latest = checkpoints_in(run / "checkpoints")[-1]
    return run, latest, sorted((latest / "shards").iterdir())


def refused(run, latest, message, monkeypatch):
    """Nothing is read of the last checkpoint of a run, and of the one before it where that is asked for."""
    load, folders = shards.load, []

    def noted(tensors, storage_reader, **more):
        folders.append(Path(storage_reader.path).parent.name)
        return load(tensors, storage_reader=storage_reader, **more)

    monkeypatch.setattr(shards, "load", noted)
    with pytest.raises(StoreError) as caught:
        resume(run)
    assert message in str(caught.value)
    assert {diagnostic.code for diagnostic in caught.value.diagnostics} == {"TFK082"}
    assert f"{latest} cannot be used; `--earlier` uses the one before it" in str(caught.value)
    assert folders == []
    assert resume(run, earlier=True, overrides=["stopping.max_steps=13"]).progress.step == 13
    assert folders == ["step-8"]


@pytest.mark.parametrize("kind", ["cut", "altered", "missing", "header"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_shard_is_named(sharded, monkeypatch, kind, number):
    run, latest, files = sharded
    data, at = bytearray(files[number].read_bytes()), 20 if kind == "header" else -5
    data[at] ^= 1
    files[number].unlink()
    if kind != "missing":
        files[number].write_bytes(data[:-5] if kind == "cut" else data)
    refused(run, latest, f"{files[number]} is missing" if kind == "missing" else f"{files[number]} has ", monkeypatch)


def list_again(latest):
    """Write the manifest of the present content, so that the content looks undamaged."""
    names = [path.relative_to(latest) for path in sorted(latest.rglob("*")) if path.is_file() and path.name != "manifest.json"]
    (latest / "manifest.json").write_text(json.dumps({str(name): file_record(latest / name) for name in names}))


def rewrite(path, key, shorter):
    """The same shard with a tensor that is a row shorter, or not there."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    value = tensors.pop(key)
    save_file({**tensors, key: value[:-1].clone()} if shorter else tensors, path, metadata)


TABLE = "nodes.source.embedding.weight"


WHERE = [
    (file, which, shorter)
    for number, file in enumerate(("model", "optimiser", "average"))
    for place, which in enumerate(((0,), (1,), (0, 1)))
    for shorter in (False, True)
    if EVERY_CASE or (number + place + shorter) % 2  # any two of them meet
]


@pytest.mark.parametrize(("file", "which", "shorter"), WHERE, ids=str)
def test_a_tensor_that_no_shard_holds_whole_is_named(sharded, monkeypatch, file, which, shorter):
    """The files are as their list says: only what they hold is not."""
    run, latest, files = sharded
    name = f"{TABLE}/exp_avg" if file == "optimiser" else TABLE
    for number in which:
        rewrite(files[number], f"{file}.safetensors/{name}", shorter)
    list_again(latest)
    refused(run, latest, f"`{name}` of {file}.safetensors", monkeypatch)


def test_parts_that_overlap_are_named(sharded, monkeypatch):
    """As many elements as the tensor has, but some of them twice: the reader would leave the others as they were in memory."""
    run, latest, files = sharded
    key = f"model.safetensors/{TABLE}"
    with safe_open(files[1], "pt") as file:
        metadata = file.metadata()
    places = json.loads(metadata["DCP_SHARDING_INFO"])
    tensors = load_file(files[1])
    rows, (start, _) = tensors.pop(key), places[key]["saved_offsets"]
    for name, part, at in (("early", rows[:3], start - 3), ("late", rows[3:], start + 3)):
        placed = {**metadata, "DCP_SHARDING_INFO": json.dumps({key: {"saved_offsets": [at, 0]}})}
        save_file({key: part.clone()}, latest / "shards" / f"{name}.safetensors", placed)
    save_file(tensors, files[1], metadata)
    list_again(latest)
    refused(run, latest, f"parts of `{TABLE}` of model.safetensors that overlap or lie outside", monkeypatch)


def test_a_shard_with_far_more_tensors_than_the_checkpoint_is_not_read(sharded, monkeypatch):
    run, latest, _ = sharded
    many = {f"model.safetensors/{number}": torch.ones(1) for number in range(900)}
    save_file(many, latest / "shards" / "other.safetensors")
    list_again(latest)
    refused(run, latest, "other.safetensors has 900 tensors, and the checkpoint has ", monkeypatch)


@pytest.mark.parametrize(
    ("boxes", "separate"),
    [
        ([((0, 0), (2, 4)), ((2, 0), (2, 4))], True),
        ([((2, 0), (2, 4)), ((0, 0), (2, 2)), ((0, 2), (2, 2))], True),
        ([((0, 0), (2, 4)), ((1, 0), (2, 4))], False),
        ([((0, 0), (4, 2)), ((1, 1), (1, 1))], False),
        ([((0, 0), (4, 4)), ((4, 0), (1, 4))], False),
        ([((-1, 0), (2, 4))], False),
        ([((0,), (4,))], False),
    ],
)
def test_parts_of_a_tensor(boxes, separate):
    parts = [ChunkStorageMetadata(torch.Size(at), torch.Size(sizes)) for at, sizes in boxes]
    assert shards._separate(parts, torch.Size([4, 4])) == separate


@pytest.mark.parametrize("number", [0, 1])
def test_a_shard_that_is_neither_there_nor_listed_is_missed(sharded, monkeypatch, number):
    run, latest, files = sharded
    files[number].unlink()
    list_again(latest)
    refused(run, latest, f"{latest / 'shards'} does not hold ", monkeypatch)


def test_tensors_that_were_not_written_are_named(sharded, monkeypatch):
    run, latest, _ = sharded
    save_file({"model.safetensors/other": torch.ones(2)}, latest / "shards" / "other.safetensors")
    list_again(latest)
    refused(run, latest, "`other` of model.safetensors", monkeypatch)


def test_a_checkpoint_without_a_complete_manifest_is_named(sharded, monkeypatch):
    run, latest, _ = sharded
    state = json.loads((latest / "state.json").read_text())
    del state["tensors"]
    (latest / "state.json").write_text(json.dumps(state))
    list_again(latest)
    refused(run, latest, f"{latest / 'state.json'} does not list the tensors", monkeypatch)


def test_two_processes_tell_damaged_shards_once_and_go_back(sharded, tmp_path, fork_jobs):
    run, latest, files = sharded
    rewrite(files[1], f"model.safetensors/{TABLE}", False)
    list_again(latest)
    for name in ("whole", "shards"):
        shutil.copytree(run, tmp_path / name)
    on = {"resume": True, "overrides": ["stopping.max_steps=13"]}
    jobs = [
        {**on, "directory": str(tmp_path / name), "fsdp": name == "shards", "earlier": earlier}
        for name in ("whole", "shards")
        for earlier in (False, True)
    ]
    found, _, words = fork_jobs(jobs, tmp_path)
    assert found == [[["TFK082", "TFK082", reported_by_other_rank], [13]] * 2 for reported_by_other_rank in (False, True)], (
        words
    )


def test_a_mean_needs_whole_tensors_too(sharded, tmp_path):
    run, latest, files = sharded
    rewrite(files[0], f"model.safetensors/{TABLE}", False)
    list_again(latest)
    with pytest.raises(StoreError, match=f"TFK082 .*`{TABLE}` of model.safetensors"):
        average_checkpoints(run, None, tmp_path / "mean")
