"""A checkpoint that holds NaN or infinity is named: training does not go on with it, and it is not averaged."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tfkit import StoreError
from tfkit.files import file_record
from tfkit.train import average_checkpoints, resume
from tfkit.train.checkpoint import checkpoints_in

pytestmark = pytest.mark.xdist_group("resume")  # its run is trained once


def spoil(path, value):
    """One number of a tensor that has several, and the digest that goes with it."""
    tensors = load_file(path)
    name = next(name for name, tensor in tensors.items() if tensor.numel() > 9)
    tensors[name].view(-1)[5] = value
    save_file(tensors, path)
    manifest = path.parent / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {path.name: file_record(path)}))
    return name, tensors[name].numel()


@pytest.mark.slow
@pytest.mark.parametrize(("file", "value", "word"), [("model", torch.nan, "NaN"), ("optimiser", torch.inf, "infinite")])
def test_a_checkpoint_of_a_diverged_run_is_named(whole, tmp_path, file, value, word):
    last = checkpoints_in(whole / "checkpoints")[-1]
    path = last / f"{file}.safetensors"
    name, count = spoil(path, value)
    message = rf"TFK084 {path}: of the {count:,} numbers of `{name}`, 1 {word}; training diverged before it was written"
    with pytest.raises(StoreError, match=message):
        resume(whole)
    with pytest.raises(StoreError, match=message):
        average_checkpoints(whole, 2, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert resume(whole, earlier=True).progress.step == 24
    shutil.rmtree(last)
    assert resume(whole).progress.step == 24
