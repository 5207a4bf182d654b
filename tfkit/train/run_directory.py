"""Where a run keeps what it makes.

recipe.yaml              the recipe, everything filled in
spec.yaml                the spec, with the sizes of the vocabularies
source.json target.json  the tokenisers; one file where the vocabulary is joint: tokeniser.json
digests.json             what the run began with
data/                    the corpora of ids
checkpoints/step-N       all that going on needs
models/step-N            the best models by validation, as `tfkit build` saves them, with their tokenisers
log.jsonl                every step and validation, one JSON object a line
curve.html               the curve of the training
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from ..errors import Fault, StoreError
from ..files import write_whole

RECIPE, SPEC, DIGESTS, LOG, CURVE = "recipe.yaml", "spec.yaml", "digests.json", "log.jsonl", "curve.html"


def check_new(directory: Path) -> None:
    """Raises StoreError for a directory in which something stands already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        fix = "`--resume` goes on with it" if (directory / RECIPE).is_file() else "name another directory"
        what = "exists and is not empty" if directory.is_dir() else "exists and is no directory"
        raise StoreError(Fault("TFK080", f"{directory} {what}", fix))


def append_log(path: Path, entry: Mapping[str, object]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def cut_log(path: Path, step: int) -> None:
    """Forget what was logged after a step: a run that goes on from there will say it again."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_bytes().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the line that was being written when the process was killed
        if isinstance(entry, dict) and entry.get("step", 0) <= step:
            kept.append(line.decode())
    write_whole(path, "".join(f"{line}\n" for line in kept))


def sweep(directory: Path) -> None:
    """Remove the drafts of a process that was killed while it wrote; what it had put aside to replace comes back."""
    for folder in (directory / "checkpoints", directory / "models"):
        for old in folder.glob(".step-*.old"):
            for kept in old.iterdir():
                if not (folder / kept.name).exists():
                    kept.rename(folder / kept.name)
        for draft in [*folder.glob(".step-*.draft"), *folder.glob(".step-*.old")]:
            shutil.rmtree(draft, ignore_errors=True)
