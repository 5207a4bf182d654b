"""No command computes with weights that are NaN in silence: it names them, or it prints none of their numbers."""

from __future__ import annotations

import json
import re
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hostile.harness import Ended, Runner
from hostile.inputs import Reads, parameters, read_arguments
from tfkit.files import file_record

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("silent")]  # its inputs are spoilt once

WITHOUT_WEIGHTS = {"diff", "doctor", "shortlist"}
"""Commands that read the spec of a saved model alone."""
WITHOUT_RESULTS = {"export", "import", "serve"}
"""Commands that compute nothing with the weights that they load; `serve` does not before a request."""
MORE = {"look": ("images/run",), "classify": ("images/run",)}
"""Further models of commands."""


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def spoil(folder: Path) -> None:
    """Every number of every file of weights becomes NaN, with the digests that go with it."""
    for path in folder.rglob("*.safetensors"):
        save_file(
            {name: torch.full_like(tensor, torch.nan) for name, tensor in load_file(path).items()}, path, {"format": "pt"}
        )
        for name in ("versions.json", "manifest.json"):
            listing = path.parent / name
            if listing.exists():
                found = json.loads(listing.read_text())
                found.get("files", found)[path.name] = file_record(path)
                listing.write_text(json.dumps(found))


MODELS = {"model", "run", "huggingface", "images/run", "audio"}
ARGUMENTS = [
    each
    for each in read_arguments()
    if MODELS & {*each.good} and each.command not in WITHOUT_WEIGHTS and each.name != "base"  # adapters have its digest
]


@pytest.fixture(scope="module")
def spoilt(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spoilt") / "inputs"
    shutil.copytree(good, folder)
    spoil(folder)
    return folder


@pytest.mark.parametrize("reads", ARGUMENTS, ids=lambda each: f"{each.command}-{each.name}")
def test_weights_that_are_nan_are_named_and_none_of_their_results_is_printed(
    reads: Reads, good: Path, spoilt: Path, runner: Runner, tmp_path: Path
) -> None:
    folders = {name: Path(shutil.copytree(folder, tmp_path / name)) for name, folder in (("good", good), ("spoilt", spoilt))}

    def run(name: str, words: list[str]) -> Ended:
        ended = runner.run(words, folders[name])
        remove(folders[name] / "new")
        return ended

    allows = any(each.name == "allow_nan" for each in parameters(reads.command))
    refused = 0
    for value, beside in product((*reads.good, *MORE.get(reads.command, ())), reads.besides()):
        words = reads.words(value, beside)
        if run("good", words).code not in (0, 3):
            continue  # the command is for another kind of model
        ended = run("spoilt", words)
        print(words, ended)
        assert (ended.code, ended.wrong(True)) == (2, "")
        assert re.search(r"TFK(084|117) .*/.*\.safetensors: of the [0-9,]+ numbers of `[^`]+`, [0-9,]+ NaN", ended.err)
        refused += 1
        for more in ([], ["--json"]) if allows else ():
            allowed = run("spoilt", [*words, "--allow-nan", *more])
            print(allowed)
            assert allowed.wrong(reads.command not in WITHOUT_RESULTS) == ""
            if reads.command not in WITHOUT_RESULTS:
                assert [*json.loads(allowed.out)] == ["diagnostics"] if more else not allowed.out
    assert refused
