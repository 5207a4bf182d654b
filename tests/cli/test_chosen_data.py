"""`tfkit train SPEC` chooses the kind of data from the option that names the file and from the model."""

import pytest

import encoder_tasks
import kinds_task
from tfkit.cli.train import DATA, _recipe

TASKS = {
    "classification": (kinds_task, "table", "text.tsv"),
    "tagged": (encoder_tasks, "table", "train.conll"),
    "language": (kinds_task, "text", "train.src"),
    "masked": (kinds_task, "text", "train.src"),
    "masked_pairs": (encoder_tasks, "text", "train.txt"),
}


@pytest.mark.parametrize("kind", TASKS)
def test_the_data_are_those_of_the_model(kind, tmp_path):
    task, option, name = TASKS[kind]
    task.recipe_for(tmp_path, kind)
    data = dict.fromkeys(DATA) | {option: str(tmp_path / name)}
    recipe = _recipe(str(tmp_path / "model.yaml"), [], [f"data.{option}={data[option]}"], data, None)
    assert recipe.data.kind == kind


def test_a_written_kind_is_kept(tmp_path):
    encoder_tasks.recipe_for(tmp_path, "pairs")
    data = dict.fromkeys(DATA) | {"table": str(tmp_path / "train.tsv")}
    recipe = _recipe(str(tmp_path / "model.yaml"), ["data.kind=pairs"], [f"data.table={data['table']}"], data, None)
    assert recipe.data.kind == "pairs"
