"""`tfkit train --processes N`: several processes on this machine, without torchrun."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from tfkit import InputError, load_recipe
from tfkit.train import train
from tfkit.train.distributed.process_group import VARIABLES, join_processes
from torchrun import COMMAND

TRAIN = [sys.executable, "-m", "tfkit", "train"]


def command(*words, **variables):
    clean = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "RANK")}
    return subprocess.run([*TRAIN, *map(str, words)], capture_output=True, text=True, timeout=600, env=clean | variables)


def weights(run):
    return load_file(run / "models" / "step-4" / "model.safetensors")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
            "RANK=1, WORLD_SIZE=2, LOCAL_RANK=1 names other processes of the run, and MASTER_ADDR is not set",
        ),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "x"}, "WORLD_SIZE=2 names other processes of the run, and RANK, LOCAL_RANK is not"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ""),
        ({"MASTER_ADDR": "x"}, ""),
    ],
)
def test_variables_of_torchrun_are_set_all_together(monkeypatch, variables, message):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"TFK118 {message}") if message else nullcontext(), join_processes("cpu") as joined:
        assert joined[0].count == 1


@pytest.mark.slow
def test_two_processes_train_as_one_does(task, tmp_path):
    settings = ["batching.accumulate=2", "stopping.max_steps=4", "validation.every_steps=4"]
    given = [word for setting in settings for word in ("--set", setting)]
    done = command(task, "-o", tmp_path / "two", "--processes", 2, *given, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    kinds = [json.loads(line)["kind"] for line in done.stdout.splitlines()]
    assert kinds.count("end") == kinds.count("start") == 1
    train(load_recipe(task, settings), tmp_path / "one")
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.xdist_group("several_processes")
def test_a_mistake_is_reported_once_and_without_a_traceback(task, tmp_path, fork_jobs):
    words = ["train", task, "-o", tmp_path / "run", "--processes", 2, "--set", "optimiser.kind=nonsense"]
    done = fork_jobs.script(COMMAND, *words, count=None)
    assert done.returncode == 2
    assert done.stderr.count("TFK") == 1
    assert "Traceback" not in done.stderr


def test_it_is_refused_under_torchrun(task, tmp_path):
    done = command(task, "-o", tmp_path / "run", "--processes", 2, RANK="0")
    assert done.returncode == 2
    assert "--processes under torchrun" in done.stderr


SCRIPT = """
import os, signal, sys, time
from tfkit.cli import local_processes
local_processes.PATIENCE = 0.2
code = local_processes.start_processes(3)
if code is None:
    rank = int(os.environ["RANK"])
    assert os.environ["WORLD_SIZE"] == "3" and os.environ["LOCAL_RANK"] == str(rank) and int(os.environ["OMP_NUM_THREADS"]) >= 1
    {work}
    sys.exit(0)
print("ended with", code)
"""


@pytest.mark.parametrize(
    ("work", "code"),
    [
        ("pass", 0),
        ("sys.exit(7 if rank == 1 else 0)", 7),
        ("rank != 1 and time.sleep(600); sys.exit(5)", 5),  # the others are ended
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN); rank != 1 and time.sleep(600); sys.exit(5)", 5),  # by force
        ("os.kill(os.getpid(), signal.SIGKILL) if rank == 2 else None", 137),
    ],
    ids=["all end", "one fails", "others wait", "others do not listen", "one is killed"],
)
def test_the_exit_code_is_that_of_the_first_that_failed(work, code):
    run = subprocess.run([sys.executable, "-c", SCRIPT.format(work=work)], capture_output=True, text=True, timeout=120)
    assert run.stdout == f"ended with {code}\n", run.stderr


def test_sigterm_reaches_every_process():
    work = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); os.write(1, b'%d\\n' % rank); time.sleep(600)"
    command = [sys.executable, "-c", SCRIPT.format(work=work)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert {process.stdout.readline() for _ in range(3)} == {"0\n", "1\n", "2\n"}
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "ended with 3\n"
    assert process.returncode == 0


@pytest.mark.parametrize("after", [1, 2, 3])
def test_sigterm_while_the_processes_are_started_leaves_none_behind(after):
    """The signal arrives between two forks, or after the last one and before the first wait."""
    early = f"""
import os, signal
fork, forked = os.fork, 0
def fork_and_terminate():
    global forked
    process = fork()
    if process:
        forked += 1
        if forked == {after}:
            os.kill(os.getpid(), signal.SIGTERM)
    return process
os.fork = fork_and_terminate
"""
    run = subprocess.run(
        [sys.executable, "-c", early + SCRIPT.format(work="time.sleep(600)")], capture_output=True, text=True, timeout=60
    )
    assert run.stdout == "ended with 143\n", run.stderr
