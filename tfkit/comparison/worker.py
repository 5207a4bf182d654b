"""The process of one run: `python -m tfkit.comparison.worker`, which the runner starts with its job on standard input.

It ends with exit code 0 after it has written the result of the run, or with 1 after it has printed why the run failed. If its
standard input is closed, because the runner was killed, it saves a checkpoint and ends.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ..errors import TfkitError
from ..files import FileModel, write_whole
from ..recipe import load_recipe
from ..train import Outcome, Trainer, resume, train
from ..train.log import ValidationEntry, read_log
from .results import RunResult


class Job(FileModel):
    """A run: a recipe with its changes, its directory, and the file of its result."""

    recipe: str
    overrides: list[str]
    directory: str
    result: str
    digest: str
    device: str


class ParameterCount:
    """A callback that counts the parameters of the model."""

    def __init__(self) -> None:
        self.parameters = 0

    def on_train_start(self, trainer: Trainer, changes: list[str]) -> None:
        self.parameters = sum(parameter.numel() for parameter in trainer.step.model.parameters())

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def run_job(job: Job) -> None:
    """Train, or resume, and write the result. Raises TfkitError."""
    directory, count = Path(job.directory), ParameterCount()
    if (directory / "recipe.yaml").is_file():
        outcome = resume(directory, device=job.device, callbacks=[count])
    else:
        outcome = train(load_recipe(job.recipe, job.overrides), directory, device=job.device, callbacks=[count])
    write_whole(job.result, _result(job, outcome, count.parameters).model_dump_json() + "\n")


def _result(job: Job, outcome: Outcome, parameters: int) -> RunResult:
    metric = load_recipe(Path(job.directory) / "recipe.yaml").validation
    validations = [entry for entry in read_log(Path(job.directory) / "log.jsonl") if isinstance(entry, ValidationEntry)]
    best = next((validation for validation in reversed(validations) if validation.best), None)
    score = math.nan if best is None else score_of(best, metric.metric, metric.lowercase)
    return RunResult(
        score=score if math.isfinite(score) else None,
        step=0 if best is None else best.step,
        steps=outcome.progress.step,
        seconds=outcome.progress.seconds,
        parameters=parameters,
        reason=outcome.reason,
        digest=job.digest,
    )


def score_of(entry: ValidationEntry, metric: str, lowercase: bool) -> float:
    """The score of a validation by the metric of a recipe."""
    name = "bleu_lowercase" if metric == "bleu" and lowercase else metric
    value = entry.nll if name == "loss" else entry.scores[name]
    return math.nan if value is None else value


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin: its lock, held by this thread, would abort the process at its end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Run the job in the first line of standard input."""
    job = Job.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        run_job(job)
    except TfkitError as error:
        print("; ".join(map(str, error.diagnostics)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
