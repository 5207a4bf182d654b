"""Rows fit into the tables of positions of a model, or are named before training begins."""

import pytest
import yaml

from kinds_task import recipe_for
from tfkit import InputError, load_recipe
from tfkit.data import Corpus
from tfkit.train import train
from translation_task import write_task

TABLE = "model.defaults.position={kind: learned, max_len: 8}"


def begun(recipe, *changes):
    """The directory of a run of one step; `batching.max_length` is left to it."""
    written = yaml.safe_load(recipe.read_text())
    written["batching"].pop("max_length", None)
    recipe.write_text(yaml.safe_dump(written))
    train(load_recipe(recipe, [TABLE, "stopping.max_steps=1", *changes]), recipe.parent / "run")
    return recipe.parent / "run"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parallel", "language", "masked", "classification"])
def test_rows_have_no_more_tokens_than_the_model_has_positions(tmp_path, kind):
    recipe = write_task(tmp_path) if kind == "parallel" else recipe_for(tmp_path, kind)
    run = begun(recipe, "tokeniser.vocab_size=60")
    assert load_recipe(run / "recipe.yaml").batching.max_length == 8
    longest = 8 + (kind == "language")  # the last token is predicted and not read
    for name in ("train", "validation"):
        corpus = Corpus(run / "data" / f"{name}.arrow")
        assert max(int(lengths.max()) for lengths in corpus.lengths.values()) <= longest
    assert max(int(each.max()) for each in Corpus(run / "data" / "train.arrow").lengths.values()) == longest


def test_the_shorter_table_of_two_counts(tmp_path):
    changes = ["model.source.position={kind: learned, max_len: 6}", "model.target.position={kind: learned, max_len: 9}"]
    run = begun(write_task(tmp_path), *changes, "model.defaults.position=none")
    assert load_recipe(run / "recipe.yaml").batching.max_length == 6


def test_a_longer_max_length_that_is_written_stays_where_no_row_is_longer(tmp_path):
    recipe = recipe_for(tmp_path, "masked")
    (tmp_path / "train.src").write_text("the dog\nbig cat\n" * 20)
    run = begun(recipe, "batching.max_length=30")
    assert load_recipe(run / "recipe.yaml").batching.max_length == 30


@pytest.mark.parametrize("kind", ["parallel", "language", "classification"])
def test_a_row_beyond_the_positions_is_named_with_the_setting(tmp_path, kind):
    recipe = write_task(tmp_path) if kind == "parallel" else recipe_for(tmp_path, kind)
    with pytest.raises(InputError) as caught:
        begun(recipe, "batching.max_length=30", "tokeniser.vocab_size=60")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.path) == ("TFK061", "batching.max_length")
    assert diagnostic.location.file == str(tmp_path / ("text.tsv" if kind == "classification" else "train.src"))
    assert diagnostic.message.endswith("tokens ends here, and the model has 8 positions")
    assert diagnostic.fix.startswith("write `batching.max_length: 8`")
    assert not (tmp_path / "run").exists()


def test_a_row_of_a_validation_file_is_not_left_out_but_named(tmp_path):
    recipe = recipe_for(tmp_path, "classification")
    (tmp_path / "validation.tsv").write_text("the dog\tanimal\n" + "the old house " * 9 + "\tthing\n")
    with pytest.raises(InputError, match=r"validation.tsv:2:1: TFK061 a row of \d+ tokens ends here.* shorten the line"):
        begun(recipe, f"data.validation_table={tmp_path / 'validation.tsv'}")
