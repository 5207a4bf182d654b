"""Small runs of the four kinds of models that are served."""

import pytest

from forced import small_weights_rounded
from graph_stand_in import recordings_on_cpu
from kinds_task import recipe_for
from tfkit import load_recipe
from tfkit.train import train
from translation_task import write_task

__all__ = ["recordings_on_cpu", "small_weights_rounded"]

NFKC = "tokeniser.normalise=nfkc"  # some texts become longer
STEPS = ["stopping.max_steps=20", "validation.every_steps=10"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    found = {"translate": folder / "translate" / "run"}
    found["translate"].parent.mkdir()
    longer = ["stopping.max_steps=150", "validation.every_steps=150", "keeping.every_steps=150", "model.defaults.dropout=0.0"]
    train(load_recipe(write_task(found["translate"].parent, 600), [*longer, "batching.tokens=512", NFKC]), found["translate"])
    kinds = (("language", "generate", "loss"), ("classification", "classify", "accuracy"), ("masked", "fill", "loss"))
    for kind, name, metric in kinds:
        (folder / name).mkdir()
        found[name] = folder / name / "run"
        train(load_recipe(recipe_for(folder / name, kind, metric), [*STEPS, NFKC]), found[name])
    return found
