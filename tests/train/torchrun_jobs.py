"""A list of training runs, one after the other, in several processes started by torchrun.

    torchrun --standalone --nproc-per-node 2 torchrun_jobs.py JOBS.json

Every process writes how its jobs ended beside JOBS.json. The keys of a job:

recipe, directory, overrides, fsdp   as in `tfkit.train.train`
resume, earlier                      resume the run in the directory
kill                                 the step in which the last process kills itself
unread                               the checkpoint that the last process cannot read
fails                                the step in which a callback raises
scale                                the first loss scale of float16
shapes                               the number of batch shapes to compile, with torch's operators as the backend
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError

from tfkit import TfkitError, load_recipe
from tfkit.data import batch_shapes
from tfkit.train import checkpoint, resume, train
from tfkit.train.step import TrainStep

SCALER = torch.amp.GradScaler


def kill_in(number: int) -> None:
    """The last process of all kills itself in a step, between its own gradients and the others'."""
    losses = TrainStep._losses

    def fatal(step, *arguments):
        found = losses(step, *arguments)
        if step.progress.step + 1 == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    TrainStep._losses = fatal


def unread(name: str) -> None:
    """The last process of all cannot read the weights of a checkpoint, also while it is written, which the others can."""
    load, facts = checkpoint.load_file, checkpoint.file_record

    def refuse(path):
        if path.parent.name == name:
            raise SafetensorError("missing")
        return load(path)

    def refuse_facts(path):
        if path.parts[-3].startswith(f".{name}."):
            raise OSError(5, "Input/output error")
        return facts(path)

    checkpoint.load_file, checkpoint.file_record = refuse, refuse_facts


class Failing:
    """A callback that raises at a step."""

    def __init__(self, at: int | None) -> None:
        self.at = at

    def on_step_end(self, step) -> None:
        if step.step == self.at:
            raise BrokenPipeError

    def __getattr__(self, name):
        return lambda *progress: None


def ended(job: dict) -> list:
    """How a job ended: its last step, or the codes of what was wrong."""
    if torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
        if job.get("kill"):
            kill_in(job["kill"])
        if job.get("unread"):
            unread(job["unread"])
    if job.get("shapes"):
        batch_shapes.MAX_SHAPES, torch.compile = job["shapes"], partial(torch.compile, backend="aot_eager")
    torch.amp.GradScaler = partial(SCALER, init_scale=job.get("scale", 2.0**16))
    directory, overrides, fsdp = Path(job["directory"]), job.get("overrides", []), job.get("fsdp", False)
    try:
        if job.get("resume"):
            return [resume(directory, overrides=overrides, fsdp=fsdp, earlier=job.get("earlier", False)).progress.step]
        callbacks = [Failing(job.get("fails"))]
        return [train(load_recipe(job["recipe"], overrides), directory, fsdp=fsdp, callbacks=callbacks).progress.step]
    except (BrokenPipeError, KeyboardInterrupt) as error:
        return [type(error).__name__]
    except TfkitError as error:
        return [*(diagnostic.code for diagnostic in error.diagnostics), error.reported_by_other_rank]


def main() -> None:
    # When a process dies, torchrun sends SIGTERM to the others, perhaps before they have written how they ended. A handler,
    # because a run leaves ignored signals ignored. torchrun kills a process that does not end within 30 seconds.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    torch.distributed.init_process_group("gloo")
    path = Path(sys.argv[1])
    found = [ended(job) for job in json.loads(path.read_text())]
    report = path.with_suffix(f".{torch.distributed.get_rank()}")
    draft = report.with_name(f"{report.name}.draft")
    draft.write_text(json.dumps(found))
    draft.replace(report)  # torchrun may end this process in the middle of a write
    if any("TFK119" in each for each in found):
        os._exit(0)  # torchrun is ending the run; one that forked this process would wait 30 seconds for its usual end
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
