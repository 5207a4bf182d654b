"""Several processes train as one does, however the weights are held; the launcher is torchrun, or a fork where the
launcher does not matter; the transport is gloo."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kinds_task import recipe_for
from tfkit import InputError, load_recipe
from tfkit.graph.training import Regime, command_for
from tfkit.train import average_checkpoints, resume, train
from tfkit.train.checkpoint import checkpoints_in
from tfkit.train.run_files import locked
from torchrun import LAUNCH, environment
from translation_task import write_task

pytestmark = [pytest.mark.xdist_group("several_processes"), pytest.mark.exhaustive]

FOUR = ["batching.accumulate=4"]
"""Five batches an epoch, so that its last step leaves all processes but one without a batch."""
VARIANTS = {
    "ddp": (FOUR, False),
    "fsdp": (FOUR, True),
    "fsdp-again": ([*FOUR, "activation_checkpointing=true", "optimiser=adamw", "clip_norm=0.5", "average=null"], True),
    "fsdp-half": ([*FOUR, "precision=float16", "validation.every_steps=100"], True),
    "ddp-half": ([*FOUR, "precision=float16", "validation.every_steps=100"], False),
    "fsdp-bfloat-half": ([*FOUR, "precision=bfloat16", "activation_checkpointing=true"], True),
    "ddp-unused": ([*FOUR, "model={folder}/unused.yaml", "validation.metric=bleu"], False),
    "fsdp-unused": ([*FOUR, "model={folder}/unused.yaml", "validation.metric=bleu"], True),
}
STEPS = 8
STOP, WHOLE = "stopping.max_steps=5", f"stopping.max_steps={STEPS}"


def short_task(folder: Path) -> Path:
    """The recipe of `write_task`, with a third of its steps, and half of those after which anything else happens."""
    recipe = write_task(folder)
    longer = {"warmup_steps: 20": 10, "max_steps: 24": STEPS, "{every_steps: 10}": 5, "{every_steps: 8,": 4}
    text = recipe.read_text()
    for words, number in longer.items():
        assert words in text
        text = text.replace(words, re.sub(r"\d+", str(number), words))
    recipe.write_text(text)
    return recipe


@pytest.fixture
def task(tmp_path):
    return short_task(tmp_path)


def log(run: Path, kind: str) -> list[dict]:
    return [entry for line in (run / "log.jsonl").read_text().splitlines() if (entry := json.loads(line))["kind"] == kind]


def same_losses(one: Path, many: Path) -> None:
    """Two runs met the same tokens, and their losses differ by rounding alone: n u for float32 sums of n tokens in a new order,
    and one eps of float16 where the model computes in it. A validation computes in float32, but with weights that such steps
    made: they change its loss as they change that of the next step, so it has the same bound, n that of the largest step."""
    half = torch.finfo(torch.float16).eps if "half" in many.name else 0.0
    mine, theirs = log(one, "step"), log(many, "step")
    assert [entry["step"] for entry in mine] == [entry["step"] for entry in theirs]
    for a, b in zip(mine, theirs, strict=True):
        assert (a["source_tokens"], a["target_tokens"], a["rate"]) == (b["source_tokens"], b["target_tokens"], b["rate"])
        bound = max(a["target_tokens"] * torch.finfo(torch.float32).eps / 2, half)
        for name in ("loss", "nll"):
            assert abs(a[name] - b[name]) <= bound * a[name], (a["step"], name)
    most = max(step["target_tokens"] for step in mine)
    bound = max(most * torch.finfo(torch.float32).eps / 2, half)
    for a, b in zip(log(one, "validation"), log(many, "validation"), strict=True):
        assert abs(a["nll"] - b["nll"]) <= bound * a["nll"], a["step"]
        assert a["scores"] == b["scores"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, fork_jobs):
    """Runs of one process and of two, by name; some were resumed with another kind of parallelism."""
    folder = tmp_path_factory.mktemp("runs")
    recipe = short_task(folder)
    spec = (folder / "small.yaml").read_text()  # an output that no loss reads, and layers that share their weights
    spec = spec.replace("outputs: [logits]", "  other: {kind: classify, input: encoder, classes: 4}\noutputs: [logits, other]")
    spec = spec.replace("input: source, num_layers: 1", "input: source, layers: [{repeat: 3, shared: true}]")
    (folder / "unused.yaml").write_text(spec)
    for name, (overrides, _) in VARIANTS.items():
        overrides[:] = [each.format(folder=folder) for each in overrides]
        if name not in ("fsdp", "fsdp-half", "fsdp-unused"):  # the same run of one process as that of ddp
            train(load_recipe(recipe, overrides), folder / f"one-{name}")
    for name in ("", "-half", "-unused"):
        shutil.copytree(folder / f"one-ddp{name}", folder / f"one-fsdp{name}")
    train(load_recipe(recipe, [*FOUR, STOP]), folder / "one-then-ddp")
    shutil.copytree(folder / "one-then-ddp", folder / "one-then-fsdp")
    made = [
        {"recipe": str(recipe), "directory": str(folder / name), "overrides": o, "fsdp": f} for name, (o, f) in VARIANTS.items()
    ]
    for name, sharded in {
        "ddp-then-fsdp": False,
        "fsdp-then-ddp": True,
        "fsdp-then-one": True,
        "fsdp-then-fsdp": True,
    }.items():
        made.append({"recipe": str(recipe), "directory": str(folder / name), "overrides": [*FOUR, STOP], "fsdp": sharded})
        if not name.endswith("one"):
            on = {"directory": str(folder / name), "overrides": [WHOLE], "resume": True}
            made.append({**on, "fsdp": name.endswith("fsdp")})
    for name in ("one-then-ddp", "one-then-fsdp"):
        on = {"directory": str(folder / name), "overrides": [WHOLE], "resume": True}
        made.append({**on, "fsdp": name.endswith("fsdp")})
    found, code, words = fork_jobs(made, folder)
    assert code == 0, words
    assert found[0] == found[1] == [[5 if STOP in job["overrides"] else STEPS] for job in made]
    return folder


@pytest.mark.parametrize("name", VARIANTS)
def test_two_processes_train_as_one(runs, name):
    same_losses(runs / f"one-{name}", runs / name)


@pytest.mark.parametrize("name", ["ddp-then-fsdp", "fsdp-then-ddp", "fsdp-then-fsdp", "one-then-ddp", "one-then-fsdp"])
def test_a_run_goes_on_with_other_processes(runs, name):
    whole, other = (log(runs / each, "step") for each in ("one-ddp", name))
    assert len(whole) == len(other) == STEPS
    for a, b in zip(whole, other, strict=True):
        assert abs(a["loss"] - b["loss"]) <= a["target_tokens"] * torch.finfo(torch.float32).eps / 2 * a["loss"]


def test_a_run_of_two_goes_on_alone_and_then_as_three(runs, tmp_path, fork_jobs):
    resume(runs / "fsdp-then-one", overrides=["stopping.max_steps=6"])
    found, code, words = fork_jobs(
        [{"directory": str(runs / "fsdp-then-one"), "overrides": [WHOLE], "resume": True, "fsdp": True}], tmp_path, count=3
    )
    assert code == 0, words
    assert found == [[[STEPS]]] * 3
    whole, other = (log(runs / each, "step") for each in ("one-ddp", "fsdp-then-one"))
    for a, b in zip(whole, other, strict=True):
        assert abs(a["loss"] - b["loss"]) <= a["target_tokens"] * torch.finfo(torch.float32).eps / 2 * a["loss"]


def test_sharded_checkpoints_equal_whole_ones(runs, tmp_path):
    """Files of both processes, nothing but safetensors and JSON, each with a part of the weights."""
    (latest,) = checkpoints_in(runs / "fsdp" / "checkpoints")[-1:]
    shards = sorted((latest / "shards").iterdir())
    assert len(shards) == 2
    assert {path.suffix for path in latest.rglob("*") if path.is_file()} == {".safetensors", ".json"}
    whole = load_file(checkpoints_in(runs / "ddp" / "checkpoints")[-1] / "model.safetensors")
    parts = [load_file(path) for path in shards]
    for name, value in whole.items():
        found = [part[f"model.safetensors/{name}"] for part in parts if f"model.safetensors/{name}" in part]
        assert sum(each.numel() for each in found) == value.numel(), name
    average_checkpoints(runs / "fsdp", None, tmp_path / "mean")
    assert load_file(tmp_path / "mean" / "model.safetensors").keys() == whole.keys()
    saved = [load_file(runs / name / "models" / f"step-{STEPS}" / "model.safetensors") for name in ("ddp", "fsdp")]
    assert saved[0].keys() == saved[1].keys()


def test_a_step_that_some_could_not_share_is_refused_once(task, tmp_path, fork_jobs):
    """All processes fail alike, and one of them tells it."""
    jobs = [
        {"recipe": str(task), "directory": str(tmp_path / "one")},
        {"recipe": str(task), "directory": str(tmp_path / "two"), "overrides": [*FOUR, "data.source=missing"]},
        {"recipe": str(task), "directory": str(tmp_path / "three"), "overrides": [*FOUR, "model.nodes.encoder.num_layers=0"]},
        {
            "recipe": str(task),
            "directory": str(tmp_path / "four"),
            "overrides": [*FOUR, "schedule={kind: constant, peak: 1e30}"],
        },
        {"directory": str(tmp_path / "five"), "resume": True},
    ]
    found, _, words = fork_jobs(jobs, tmp_path)
    codes = ["TFK118", "TFK100", "TFK021", "TFK110", "TFK111"]
    assert found == [[[code, reported_by_other_rank] for code in codes] for reported_by_other_rank in (False, True)], words
    assert not any((tmp_path / name).exists() for name in ("one", "two", "three"))
    (batches,) = (tmp_path / "four").glob("not-finite-step-*.safetensors")
    assert {name.split("/")[0] for name in load_file(batches)} == {"0", "1", "2", "3"}, "the batches of all processes are kept"
    assert checkpoints_in(tmp_path / "four" / "checkpoints")


def test_an_error_that_every_process_finds_is_reported_once(task, tmp_path, runs, fork_jobs):
    """Also where only one of them cannot read it."""
    wide = ["model.defaults.d_model=32", "model.defaults.ffn.d_ff=48", "stopping.max_steps=1"]
    train(load_recipe(task, wide), tmp_path / "wide")
    for name in ("data", "spec"):
        shutil.copytree(runs / "ddp", tmp_path / name)
    (tmp_path / "data" / "data" / "train.arrow").unlink()
    (tmp_path / "spec" / "spec.yaml").write_text("tfkit: 1\n")
    jobs = [{"directory": str(tmp_path / name), "resume": True} for name in ("data", "spec")]
    started = {"recipe": str(task), "directory": str(tmp_path / "narrow")}
    jobs += [{**started, "overrides": [*FOUR, f"pretrained={tmp_path / 'wide'}"]}]
    shutil.copytree(runs / "ddp", tmp_path / "one")
    on = {"directory": str(tmp_path / "one"), "resume": True, "unread": f"step-{STEPS}", "overrides": ["stopping.max_steps=10"]}
    jobs += [on, {**on, "earlier": True}]
    found, _, words = fork_jobs(jobs, tmp_path)
    codes = [["TFK082"], ["TFK113"], ["TFK117"]]
    assert [each[:3] for each in found] == [
        [[*code, reported_by_other_rank] for code in codes] for reported_by_other_rank in (False, True)
    ], words
    assert [each[3:] for each in found] == [
        [["TFK082", "TFK082", reported_by_other_rank], [10]] for reported_by_other_rank in (True, False)
    ], words
    assert not (tmp_path / "narrow").exists()


@pytest.mark.parametrize("fsdp", [False, True])
def test_a_killed_process_ends_the_run_and_it_goes_on(task, tmp_path, runs, fsdp, fork_jobs):
    """The process that is left ends too, says why, and saves the model if it has the whole of it."""
    overrides = [*FOUR, "keeping.every_steps=5"]
    job = {"recipe": str(task), "directory": str(tmp_path / "run"), "overrides": overrides, "fsdp": fsdp, "kill": 7}
    found, code, words = fork_jobs.jobs_of_torchrun([job], tmp_path)
    assert code != 0
    assert "SIGKILL" in words
    assert found == [[["TFK119", False]], []], words
    assert checkpoints_in(tmp_path / "run" / "checkpoints")[-1].name == ("step-5" if fsdp else "step-6")
    resume(tmp_path / "run")
    whole, other = (log(each, "step") for each in (runs / "one-ddp", tmp_path / "run"))
    for a, b in zip(whole, other, strict=True):
        assert abs(a["loss"] - b["loss"]) <= a["target_tokens"] * torch.finfo(torch.float32).eps / 2 * a["loss"]


def test_a_failing_callback_stops_all_processes_and_loses_no_step(task, tmp_path, fork_jobs):
    overrides = [*FOUR, "keeping.every_steps=500"]
    jobs = [
        {"recipe": str(task), "directory": str(tmp_path / str(fsdp)), "overrides": overrides, "fsdp": fsdp, "fails": 5}
        for fsdp in (False, True)
    ]
    found, _, words = fork_jobs(jobs, tmp_path)
    assert found == [[["BrokenPipeError"]] * 2, [["KeyboardInterrupt"]] * 2], words
    for job in jobs:
        assert [path.name for path in checkpoints_in(Path(job["directory"]) / "checkpoints")] == ["step-5"]


def test_a_share_that_one_process_cannot_read_again_costs_one_checkpoint(task, tmp_path, fork_jobs):
    job = {"recipe": str(task), "directory": str(tmp_path / "run"), "fsdp": True, "unread": "step-4"}
    found, code, words = fork_jobs([{**job, "overrides": [*FOUR, "keeping={every_steps: 2, last: 3}"]}], tmp_path)
    assert code == 0, words
    assert found == [[[STEPS]]] * 2
    assert [path.name for path in checkpoints_in(tmp_path / "run" / "checkpoints")] == ["step-2", "step-6", "step-8"]


def test_ctrl_c_stops_all_of_them_after_the_same_step(task, tmp_path):
    """torchrun passes on what the terminal has sent to all processes already: they hear it twice."""
    run = tmp_path / "run"
    words = ["train", str(task), "-o", str(run), "--set", "stopping.max_steps=100000", "--set", "validation.every_steps=100000"]
    command = [*LAUNCH, "--nproc-per-node=2", "-m", "tfkit", *words, "--set", FOUR[0]]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), start_new_session=True
    ) as process:
        while not (run / "log.jsonl").is_file() or len(log(run, "step")) < 3:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        progress, _ = process.communicate(timeout=600)
    assert f"`tfkit train --resume {run}` continues" in progress
    last = checkpoints_in(run / "checkpoints")[-1]
    assert last.name == f"step-{log(run, 'step')[-1]['step']}"


def test_two_processes_leave_out_the_steps_that_one_does(task, tmp_path, monkeypatch, fork_jobs):
    """What float16 cannot hold depends on nothing but the scale and the batch; with shared weights each sees a part of it."""
    scale, overrides = 2.0**23, [*FOUR, "precision=float16", "stopping.max_steps=10", "validation.every_steps=100"]
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=scale))
    alone = train(load_recipe(task, overrides), tmp_path / "one-half").progress
    job = {"recipe": str(task), "overrides": overrides, "scale": scale}
    jobs = [{**job, "directory": str(tmp_path / f"{fsdp}-half"), "fsdp": fsdp} for fsdp in (False, True)]
    found, code, words = fork_jobs(jobs, tmp_path)
    assert code == 0, words
    assert found == [[[10]] * 2] * 2
    assert alone.epoch > 4, "steps were left out"
    for each in jobs:
        same_losses(tmp_path / "one-half", Path(each["directory"]))
        state = json.loads((checkpoints_in(Path(each["directory"]) / "checkpoints")[-1] / "state.json").read_text())
        assert (state["progress"]["epoch"], state["progress"]["batch"]) == (alone.epoch, alone.batch)


def test_two_processes_train_one_compiled_model(tmp_path, monkeypatch, fork_jobs, most_shapes):
    """Of one stack: a graph of two takes twice as long."""
    changes = [*FOUR, "compile=true", "batching.tokens=60", f"stopping.max_steps={STEPS}", "validation.every_steps=5"]
    task = recipe_for(tmp_path, "masked")
    job = {"recipe": str(task), "directory": str(tmp_path / "two"), "overrides": changes, "shapes": 2}
    found, code, words = fork_jobs([job, {**job, "directory": str(tmp_path / "none"), "fsdp": True}], tmp_path)
    assert code == 0, words
    assert found == [[[STEPS], ["TFK118", reported_by_other_rank]] for reported_by_other_rank in (False, True)], words
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    most_shapes(2)
    train(load_recipe(task, changes), tmp_path / "one")
    same_losses(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize(("change", "code"), [("nonsense=1", "TFK017"), ("data.source=missing", "TFK100")])
def test_an_error_of_all_processes_is_printed_once(task, tmp_path, fork_jobs, change, code):
    """In the recipe, and, with processes that torchrun starts cold, after they have met; no process is left running, and none
    hides the error when it ends."""
    words = ["train", str(task), "-o", str(tmp_path / "run"), "--set", FOUR[0], "--set", change]
    if code == "TFK017":
        done = fork_jobs.torchrun("--nproc-per-node=2", words=words)
    else:
        command = [*LAUNCH, "--nproc-per-node=2", "-m", "tfkit", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment())
    assert (done.stdout + done.stderr).count(f"{code} ") == 1, done.stderr
    assert "terminate called" not in done.stderr
    assert "exitcode  : 2" in done.stderr
    assert not (tmp_path / "run").exists()


def test_processes_meet_a_run_that_is_held_and_say_so_once(task, tmp_path, fork_jobs):
    directory = tmp_path / "run"
    directory.mkdir()
    with locked(directory):
        done = fork_jobs.torchrun("--nproc-per-node=2", words=["train", task, "-o", directory, "--set", FOUR[0]])
    assert (done.stdout + done.stderr).count(f"TFK121 {directory} is in use: process {os.getpid()} on ") == 1, done.stderr
    assert "exitcode  : 2" in done.stderr
    assert [path.name for path in directory.iterdir()] == ["run.lock"]


GROUPS = """
from pathlib import Path
import torch.distributed as dist
from torch import device
from torch.distributed.distributed_c10d import ProcessGroupGloo
from tfkit.train.distributed.process_group import join_processes

def name(path):
    try:
        return path.read_text()
    except OSError:  # a thread that has just ended
        return ""

with join_processes("cpu") as (processes, _):
    asked = [group._get_backend(device("cpu")).options for group in (dist.group.WORLD, processes.group)]
    dist.barrier()  # so that the threads of both groups have started, and have their names
    processes.all_gather(None)
    names = []
    while sum("gloo_run" in each for each in names) < 2:  # on a busy machine a thread may still be without its name
        names = [name(path) for path in Path("/proc/self/task").glob("*/comm")]
    found = [each._threads for each in asked], asked[1]._timeout.total_seconds(), sum("gloo_run" in each for each in names)
    every = processes.all_gather(found)
    if processes.is_first:
        print(*every, ProcessGroupGloo is dist.ProcessGroupGloo)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux tells the names of threads")
@pytest.mark.parametrize("networks", ["", "lo"])
def test_every_group_has_one_thread(tmp_path, networks, fork_jobs):
    """Two threads corrupt memory: see tfkit/train/distributed/process_group.py. torch has its own group, the run another."""
    (tmp_path / "groups.py").write_text(GROUPS)
    named = {"GLOO_SOCKET_IFNAME": networks} if networks else {}
    done = fork_jobs.script(tmp_path / "groups.py", environment=named)
    assert (done.returncode, done.stdout) == (0, "([1, 1], 1800.0, 2) ([1, 1], 1800.0, 2) True\n"), done.stderr


SHARDS = """
import sys
import torch.distributed as dist
import tfkit
from tfkit.train.distributed.process_group import join_processes
from tfkit.train.distributed.ddp_fsdp import is_sharded, shard

dist.init_process_group("gloo")
with join_processes("cpu") as (processes, _):
    model = tfkit.build(sys.argv[1])
    shard(model, processes)
    same = all(is_sharded(each) and each.device_mesh.get_group() is processes.group for each in model.parameters())
    every = processes.all_gather(same)
    processes.group.barrier().wait()  # as at the end of a run: see `join_processes`
if dist.get_rank() == 0:
    print(every)
dist.destroy_process_group()
"""


def test_shards_use_the_process_group_of_the_run(task, tmp_path, fork_jobs):
    (tmp_path / "shards.py").write_text(SHARDS)
    done = fork_jobs.script(tmp_path / "shards.py", task.parent / "small.yaml")
    assert (done.returncode, done.stdout) == (0, "[True, True]\n"), done.stderr


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_the_command_that_a_plan_prints_trains(task, tmp_path, sharding, fork_jobs):
    """As `tfkit plan --gpus 2` prints it, with torchrun of this Python, on CPUs."""
    line = command_for(Regime(2, sharding, checkpointing=True), ["batching.tokens=60", "precision=bfloat16"])
    start, _, rest = line.partition(" --no-python tfkit ")
    words = rest.replace("RECIPE", str(task)).replace("RUN", str(tmp_path / "run")).replace("cuda", "cpu").split()
    done = fork_jobs.torchrun(*start.split()[1:], words=[*words, "--set", "stopping.max_steps=2"])
    assert done.returncode == 0, done.stderr
    assert len(log(tmp_path / "run", "step")) == 2


def test_one_process_shares_with_nobody(task, tmp_path):
    with pytest.raises(InputError, match="TFK118"):
        train(load_recipe(task), tmp_path / "run", fsdp=True)
    assert not (tmp_path / "run").exists()
