"""Trains in child processes that are killed by SIGKILL at random moments, then lets the last one finish.

    python killed_run.py RECIPE DIRECTORY KILLS SEED

Children are forked after the imports and before any tensor is made, so that each begins at once and none inherits threads.
DIRECTORY/undisturbed is a run that nobody kills; DIRECTORY/killed the other one. Prints the step of the latest checkpoint after
every kill.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # what the optimiser imports when it is first used, more than a second

from tfkit import load_recipe
from tfkit.train import resume, train


def child(recipe: str, directory: Path) -> None:
    torch.set_num_threads(1)
    if (directory / "recipe.yaml").is_file():
        resume(directory)
    else:
        shutil.rmtree(directory, ignore_errors=True)
        train(load_recipe(recipe), directory)


def latest(directory: Path) -> int:
    """The step of the latest checkpoint."""
    return max((int(path.name[5:]) for path in directory.glob("checkpoints/step-*")), default=0)


def wait_for(number: int, directory: Path, step: int) -> None:
    """Until a child has come as far as a step, or has ended."""
    while latest(directory) < step and os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.001)


def undisturbed(recipe: str, directory: Path) -> None:
    """A run that nobody kills."""
    number = os.fork()
    if not number:
        child(recipe, directory)
        os._exit(0)
    assert os.waitpid(number, 0)[1] == 0


def main() -> None:
    recipe, folder, kills, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    undisturbed(recipe, folder / "undisturbed")
    draw = random.Random(seed)
    directory, found = folder / "killed", []
    while True:
        number = os.fork()
        if not number:
            child(recipe, directory)
            os._exit(0)
        if len(found) == kills:
            assert os.waitpid(number, 0)[1] == 0
            break
        wait_for(number, directory, latest(directory) + draw.choice((0, 0, 1, 1, 2)))
        time.sleep(draw.uniform(0.0, 0.03) if draw.random() < 0.8 else draw.uniform(0.0, 0.3))
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
        found.append(latest(directory))
    print(json.dumps({"found_at": found}))


if __name__ == "__main__":
    main()
