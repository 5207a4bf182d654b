"""What `make demo` does: the recipe that comes with tfkit learns its sample. The gallery draws the result."""

from pathlib import Path

import pytest

from gallery import drawings, structure
from tfkit import Translator, load_recipe
from tfkit.look import attention
from tfkit.train import train

RECIPE = Path(__file__).parents[2] / "specs" / "recipes" / "sample.yaml"


@pytest.mark.exhaustive
def test_the_sample_is_learnt_in_half_the_steps_of_the_demo(tmp_path):
    outcome = train(load_recipe(RECIPE, ["stopping.max_steps=125"]), tmp_path / "run")
    assert outcome.progress.best > 80  # BLEU of 40 sentences that were held out
    translator = Translator.load(tmp_path / "run")
    lines = ["The doctor plays the piano in the garden.", "My sister feeds the cat every morning."]
    made = [each.text for each in translator.translate(lines)]
    right = ["Der Arzt spielt im Garten Klavier.", "Meine Schwester füttert jeden Morgen die Katze."]
    common = sum(len(set(one.split()) & set(other.split())) for one, other in zip(made, right, strict=True))
    assert common >= 8  # of 13 words: rounding may decide a word or two of a model that has read its text seven times
    [drawn] = [each for each in drawings() if each.picture.name == "attention.svg"]
    text, site = (drawn.command[drawn.command.index(option) + 1] for option in ("--text", "--site"))
    figure = attention(tmp_path / "run", text=text, sites=site)
    figure.save(tmp_path / "heads.svg")
    made, committed = structure(tmp_path / "heads.svg"), structure(drawn.picture)
    assert made[0]["image"] == committed[0]["image"] == 4
    known = {*figure.observations[0].sites[0].keys, *(f"{site}, head {head}" for head in range(4))}
    assert known <= set(made[1]) & set(committed[1])  # a longer training may translate otherwise


def test_both_sides_of_the_sample_have_a_sentence_a_line():
    source, target = (RECIPE.parent / "sample" / name for name in ("train.en", "train.de"))
    pairs = list(zip(source.read_text().splitlines(), target.read_text().splitlines(), strict=True))
    assert len(pairs) == len(set(pairs)) > 400
    assert all(one[-1] == other[-1] in ".?" for one, other in pairs)
