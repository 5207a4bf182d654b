"""A model is written whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from saved_model import names
from tfkit import Model
from tfkit.io import saving as store


class Halt(BaseException):
    """Ctrl-C, say."""


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Halt()], ids=["disk full", "interrupt"])
@pytest.mark.parametrize("old", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("at", ["save_file", "_write_json", "file_record", "rename first", "rename second"])
def test_an_interrupted_write_changes_nothing(
    at: str,
    old: bool,
    error: BaseException,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logits_of: Callable[[Model], Tensor],
) -> None:
    want = logits_of(model)
    if old:
        tfkit.save(model, tmp_path / "out")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
    if at.startswith("rename"):
        if at == "rename second" and not old:
            return  # there is only one
        rename, left = Path.rename, [1 if at == "rename first" else 2]

        def fail(self: Path, target: Path) -> Path:
            left[0] -= 1
            if left[0] == 0:
                raise error
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", fail)
    else:
        original = getattr(store, at)

        def write_and_fail(*arguments: Any) -> None:
            original(*arguments)
            raise error

        monkeypatch.setattr(store, at, write_and_fail)
    with pytest.raises(Halt if isinstance(error, Halt) else tfkit.StoreError) as raised:
        tfkit.save(model, tmp_path / "out", overwrite=True)
    monkeypatch.undo()
    if not isinstance(error, Halt):
        assert "TFK081" in str(raised.value)
        assert "No space left" in str(raised.value)
    assert names(tmp_path) == ({"out"} if old else set())
    if old:
        assert torch.equal(logits_of(tfkit.load(tmp_path / "out")), want)


FULL = """
import resource, sys, tfkit
model = tfkit.load(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    tfkit.save(model, sys.argv[2], overwrite=True)
except tfkit.StoreError as error:
    print(error)
else:
    sys.exit("it was written")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("old", [False, True], ids=["new", "overwrite"])
def test_a_full_disk_leaves_nothing_half_written(
    old: bool, model: Model, tmp_path: Path, logits_of: Callable[[Model], Tensor]
) -> None:
    tfkit.save(model, tmp_path / "one")
    place = tmp_path / ("one" if old else "two")
    run = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "one", place, "20000"], capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
    assert "TFK081" in run.stdout
    assert "too large" in run.stdout
    assert names(tmp_path) == {"one"}
    assert torch.equal(logits_of(tfkit.load(tmp_path / "one")), logits_of(model))


def test_a_place_that_cannot_be_written_is_an_error(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(tfkit.StoreError, match=r"TFK081.*cannot be written"):
        tfkit.save(model, tmp_path / "file" / "out")
    assert names(tmp_path) == {"file"}
