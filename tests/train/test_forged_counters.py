"""Counters of a checkpoint that its run cannot have reached are refused, at once, and with the reason."""

import json

import pytest
from safetensors.torch import load_file, save_file

from tfkit import StoreError
from tfkit.files import file_record
from tfkit.train import resume
from tfkit.train.checkpoint import checkpoints_in

pytestmark = pytest.mark.xdist_group("resume")  # its run is trained once
HUGE = 10**15


def listed(checkpoint, name):
    """Write the size and the digest of a changed file."""
    manifest = checkpoint / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {name: file_record(checkpoint / name)}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": HUGE}, r"`progress\.step` is 24, and [0-9,]+ lead to `progress\.epoch` 1,000,000,000,000,000"),
        ({"epoch": 30}, r"`progress\.step` is 24, and [0-9]+ lead to `progress\.epoch` 30 with `progress\.batch` [0-9]+"),
        ({"epoch": 1}, r"`progress\.step` is 24, and [0-9] lead to `progress\.epoch` 1 with `progress\.batch` [0-9]+"),
        ({"batch": 1}, r"`progress\.step` is 24, and [0-9]+ lead to `progress\.epoch` [0-9]+ with `progress\.batch` 1"),
        ({"batch": HUGE}, "`progress.batch` is 1000000000000000, epoch [0-9]+ has [0-9]+"),
        ({"source_tokens": HUGE}, r"`progress\.source_tokens` is 1,000,000,000,000,000, and the batches before have [0-9,]+"),
        ({"source_tokens": 0}, r"`progress\.source_tokens` is 0, and the batches before have [0-9,]+"),
        ({"target_tokens": HUGE}, r"`progress\.target_tokens` is 1,000,000,000,000,000, and the batches before have [0-9,]+"),
        ({"target_tokens": 100}, r"`progress\.target_tokens` is 100, and the batches before have [0-9,]+"),
        ({"stale": HUGE}, "`progress.stale` is 1,000,000,000,000,000 after 24 steps, and at most [0-9]+ is possible"),
        ({"stale": 25}, "`progress.stale` is 25 after 24 steps, and at most [0-9]+ is possible"),
        ({"reductions": 5}, "`progress.reductions` is 5, and the schedule is `inverse_sqrt`, which has none"),
        ({"plateau_stale": 3}, "`progress.plateau_stale` is 3, and the schedule is `inverse_sqrt`, which has none"),
        ({"plateau_best": 0.0}, "`progress.plateau_best` is 0[.]0, and the schedule is `inverse_sqrt`, which has none"),
        (
            {"best": None, "best_step": None, "best_models": []},
            "`progress.best` is missing, and the last validation was that of step 24",
        ),
        ({"target_tokens": 0}, r"`progress\.target_tokens` is 0, and the batches before have [0-9,]+"),
        ({"average_steps": 0}, "`average_steps` is 0 after 24 steps, and each step is averaged once"),
        ({"best_step": 0}, ".*best_step: Input should be greater than or equal to 1"),
        ({"validated": 0}, ".*is the best, but the last validation was that of step 0"),
        ({"best_models": [[1.0, 10], [1.0, 10]]}, ".*`best_models` are not different models, the best first"),
        ({"best_models": [[-9.0, 10], [-1.0, 20]]}, ".*`best_models` are not different models, the best first"),
        ({"best_models": [[1e300, 10]]}, ".*a model of `best_models` is better than the best"),
        ({"best": 1e308, "best_models": []}, ".*`best` is 1e[+]308, and a score is at most 100"),
        ({"plateau_best": 1e300}, ".*`plateau_best` is 1e[+]300, and a score is at most 100"),
        (
            {"best": -0.5, "best_step": 20, "best_models": [[-1.0, 20]]},
            ".*the model of step 20 has the score -1 in `best_models`, and -0.5 elsewhere",
        ),
        (
            {"best": None, "best_step": None, "best_models": [[-1.0, 20]]},
            ".*the model of step 20 has the score -1 in `best_models`, and 20 elsewhere",
        ),
        ({"average_steps": HUGE}, "`average_steps` is 1,000,000,000,000,000 after 24 steps, and each step"),
        ({"average_steps": 23}, "`average_steps` is 23 after 24 steps, and each step is averaged once"),
    ],
)
def test_a_counter_beyond_the_run_is_refused(whole, changes, message):
    checkpoint = checkpoints_in(whole / "checkpoints")[-1]
    path = checkpoint / "state.json"
    state = json.loads(path.read_text())
    for name, value in changes.items():
        (state if name in state else state["progress"])[name] = value
    path.write_text(json.dumps(state))
    listed(checkpoint, path.name)
    with pytest.raises(StoreError, match=f"TFK082 {path}: {message}.*; it was altered"):
        resume(whole, overrides=["stopping.max_steps=25"])


@pytest.mark.slow
def test_more_steps_than_rows_are_refused(whole):
    last = checkpoints_in(whole / "checkpoints")[-1]
    checkpoint = last.rename(last.with_name(f"step-{HUGE // 10}"))
    path = checkpoint / "state.json"
    state = json.loads(path.read_text())
    state["progress"]["step"] = HUGE // 10
    path.write_text(json.dumps(state))
    listed(checkpoint, path.name)
    with pytest.raises(StoreError, match=r"`progress\.step` is 100,000,000,000,000, and 24 lead to `progress\.epoch` [0-9]+"):
        resume(whole)


def changed_optimiser(checkpoint, change):
    """Change the tensors of the optimiser, by name, in place."""
    path = checkpoint / "optimiser.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    listed(checkpoint, path.name)


@pytest.mark.slow
@pytest.mark.parametrize("value", [1e15, -1.0, 5.0, 23.5])
def test_steps_of_the_optimiser_are_those_of_the_run(whole, value):
    checkpoint = checkpoints_in(whole / "checkpoints")[-1]
    names = []

    def change(tensors):
        names.append(next(name for name in tensors if name.endswith("/step")))
        tensors[names[0]].fill_(value)

    changed_optimiser(checkpoint, change)
    with pytest.raises(StoreError, match=f"`{names[0]}` of the optimiser is [0-9.e+-]+ after 24 steps, and all parameters"):
        resume(whole)


@pytest.mark.slow
def test_an_optimiser_without_its_state_is_refused(whole):
    changed_optimiser(checkpoints_in(whole / "checkpoints")[-1], lambda tensors: tensors.clear())
    with pytest.raises(StoreError, match="the largest `step` of the optimiser is 0 after 24 steps"):
        resume(whole)


@pytest.mark.slow
def test_a_negative_mean_of_squares_is_refused(whole):
    checkpoint = checkpoints_in(whole / "checkpoints")[-1]
    changed_optimiser(
        checkpoint, lambda tensors: next(v for n, v in tensors.items() if n.endswith("/exp_avg_sq")).view(-1)[0:1].fill_(-1e-3)
    )
    with pytest.raises(
        StoreError, match=r"TFK082 .*optimiser\.safetensors: `.*/exp_avg_sq` has -0\.001, and a mean of squares is"
    ):
        resume(whole)
