"""Several processes work on one directory concurrently, and then on the next one.

    python concurrent_runs.py RECIPE COUNT train|resume DIRECTORY ...

Children are forked after the imports and start at the same time. One that trains waits until every other one has started or
ended, so that they overlap. Prints for each directory how each process ended, by process id: "trained", or the error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch._dynamo

from tfkit import TfkitError, load_recipe
from tfkit.train import resume, train


class Waiting:
    """A callback that reports the start of training, and waits."""

    def __init__(self, says: int, hears: int) -> None:
        self.says, self.hears = says, hears

    def on_train_start(self, trainer, changes) -> None:
        os.write(self.says, b"begun\n")
        os.read(self.hears, 1)  # until the parent closes the other end

    def __getattr__(self, name):
        return lambda *progress: None


def child(recipe: str, directory: Path, how: str, start: int, says: int, hears: int) -> None:
    torch.set_num_threads(1)
    os.read(start, 1)
    callbacks = [Waiting(says, hears)]
    try:
        if how == "resume":
            resume(directory, callbacks=callbacks)
        else:
            train(load_recipe(recipe), directory, callbacks=callbacks)
        ended = "trained"
    except TfkitError as error:
        ended = str(error)
    os.write(says, f"{json.dumps([os.getpid(), ended])}\n".encode())
    os._exit(0)


def run_concurrently(recipe: str, count: int, how: str, directory: Path) -> list[list[object]]:
    """How each process ended."""
    start, begin = os.pipe()
    heard, says = os.pipe()
    hears, go_on = os.pipe()
    for _ in range(count):
        if not os.fork():
            for number in (begin, heard, go_on):
                os.close(number)
            child(recipe, directory, how, start, says, hears)
    os.close(says)
    os.close(begin)
    ended = []
    with os.fdopen(heard) as lines:
        for number, line in enumerate(lines, 1):
            ended += [] if line == "begun\n" else [json.loads(line)]
            if number == count:
                os.close(go_on)
    for number in (start, hears):
        os.close(number)
    for _ in range(count):
        os.wait()
    return ended


def main() -> None:
    recipe, count, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    print(json.dumps([run_concurrently(recipe, count, how, Path(directory)) for directory in sys.argv[4:]]))


if __name__ == "__main__":
    main()
