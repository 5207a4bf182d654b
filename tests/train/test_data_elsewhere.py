"""Errors about data and pretrained models that a recipe names elsewhere quote nothing of them."""

import re
from pathlib import Path

import pytest

import encoder_tasks
from kinds_task import recipe_for

pytestmark = pytest.mark.slow
SECRET = "hunter2secret"
TABLES = {
    "one label": "a dog\t{0}\n" * 5,
    "a control character": "a dog\tx\x1b{0}\n",
    "columns": "{0}\n",
    "many labels": "".join(f"a dog\t{{0}}{number}\n" for number in range(30)),
}


@pytest.mark.parametrize("what", TABLES)
@pytest.mark.parametrize("place", ["elsewhere", "beside", "named by the user"])
def test_a_table_is_quoted_only_beside_the_recipe(place, what, tmp_path, tfkit):
    (tmp_path / "mine").mkdir()
    recipe = recipe_for(tmp_path / "mine", "classification")
    table = tmp_path / ("mine" if place == "beside" else "theirs") / "text.tsv"
    table.parent.mkdir(exist_ok=True)
    table.write_text(TABLES[what].format(SECRET))
    given = ["--table", str(table)] if place == "named by the user" else []
    if place == "elsewhere":
        recipe.write_text(recipe.read_text().replace("table: text.tsv", f"table: {table}"))
    done = tfkit("train", str(recipe), "-o", str(tmp_path / "run"), *given)
    assert done.code == 2
    assert "TFK115" in done.err
    assert (SECRET in done.err) == (place != "elsewhere" and what in ("one label", "a control character")), done.err


@pytest.mark.parametrize("file", ["models/best.json", "versions.json"])
@pytest.mark.parametrize("text", [f'{{"{SECRET}": 1}}', f"{SECRET}", f'{{"model": "../{SECRET}", "metric": "", "score": 1}}'])
def test_a_pretrained_model_elsewhere_is_not_quoted(file, text, tmp_path, tfkit):
    (tmp_path / "mine").mkdir()
    recipe = recipe_for(tmp_path / "mine", "classification")
    path = tmp_path / "theirs" / Path(file)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    recipe.write_text(recipe.read_text() + "pretrained: ../theirs\n")
    done = tfkit("train", str(recipe), "-o", str(tmp_path / "run"))
    assert done.code == 2
    assert "TFK117" in done.err
    assert SECRET not in done.err, done.err


@pytest.mark.parametrize("place", ["elsewhere", "beside"])
def test_tags_are_quoted_only_beside_the_recipe(place, tmp_path, tfkit):
    (tmp_path / "mine").mkdir()
    recipe = encoder_tasks.recipe_for(tmp_path / "mine", "tagged")
    table = tmp_path / ("mine" if place == "beside" else "theirs") / "tagged.txt"
    table.parent.mkdir(exist_ok=True)
    table.write_text(f"dog\t{SECRET}\ncat\tx\n\n" * 20)
    recipe.write_text(re.sub(r"table: \S+?([,}])", rf"table: {table}\1", recipe.read_text()))
    done = tfkit("train", str(recipe), "-o", str(tmp_path / "run"), "--set", "validation.metric=f1")
    assert done.code == 2
    assert "TFK112" in done.err
    assert (SECRET in done.err) == (place == "beside"), done.err
