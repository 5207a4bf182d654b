"""Several models that translate together: against a plain loop over their distributions, and what does not fit."""

import math

import pytest
import torch

from tfkit import InputError, Search, Translator, load, load_recipe
from tfkit.train import train
from translation_task import sentences, write_task

pytestmark = pytest.mark.xdist_group("ensembles")  # its module fixture is trained once
SOURCES = [source for source, _ in sentences(6, seed=11)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs of one tokeniser, of which the last has another decoder, and one of another tokeniser."""
    folder = tmp_path_factory.mktemp("ensemble")
    recipe = write_task(folder)
    train(load_recipe(recipe), folder / "a")
    for name, changes in (("b", []), ("c", ["model.decoder.num_layers=2"])):
        train(load_recipe(recipe, [f"pretrained={folder / 'a'}", "seed=9", *changes]), folder / name)
    train(load_recipe(recipe, ["tokeniser.vocab_size=80", "stopping.max_steps=2"]), folder / "other")
    return folder


def mixed(models, source, tokens, averaging):
    """log p of every next token, by the equations, in float64."""
    of_models = []
    for model in models:
        with torch.no_grad():
            logits = model(source=torch.tensor([source]), target=torch.tensor([tokens])).logits[0, -1].tolist()
        total = math.fsum(math.exp(one) for one in logits)
        of_models.append([one - math.log(total) for one in logits])
    count = len(models)
    if averaging == "probabilities":
        return [math.log(math.fsum(math.exp(one) for one in column) / count) for column in zip(*of_models, strict=True)]
    means = [math.fsum(column) / count for column in zip(*of_models, strict=True)]
    normaliser = math.log(math.fsum(map(math.exp, means)))
    return [mean - normaliser for mean in means]


@pytest.mark.parametrize("averaging", ["probabilities", "log_probabilities"])
def test_searches_see_the_average_of_the_models(averaging, runs):
    places = [runs / name for name in "abc"]
    models = [load(place).double().eval() for place in places]
    greedy = Translator.load(places, Search(kind="greedy", extra_length=4), ensemble=averaging)
    for one in greedy.translate(SOURCES):
        tokens, (hypothesis,) = [1], one.hypotheses
        for chosen, log_prob in zip(hypothesis.ids.tolist(), hypothesis.token_log_probabilities.tolist(), strict=True):
            expected = mixed(models, list(one.source_ids), tokens, averaging)
            allowed = [value for number, value in enumerate(expected) if number not in (0, 1, 3)]
            assert expected[chosen] == pytest.approx(max(allowed), abs=1e-5)
            assert log_prob == pytest.approx(expected[chosen], abs=1e-4)
            tokens.append(chosen)
    for search in (Search(beams=3, n_best=2, extra_length=4), Search(kind="sample", seed=2, n_best=2, extra_length=4)):
        translator = Translator.load(places, search, ensemble=averaging)
        for one in translator.translate(SOURCES[:2], prefixes=["la", ""]):
            for hypothesis in one.hypotheses:
                tokens, total = [1], 0.0
                for chosen in hypothesis.ids.tolist():
                    total += mixed(models, list(one.source_ids), tokens, averaging)[chosen]
                    tokens.append(chosen)
                assert hypothesis.log_probability == pytest.approx(total, abs=1e-3)
            if one.source == SOURCES[0]:
                assert all(text.startswith("la") for text in one.texts)


def test_a_model_with_itself_is_the_model(runs):
    for search in (Search(kind="greedy"), Search(beams=4, n_best=3)):
        alone, twice = (
            list(Translator.load(place, search, alignment=True).translate(SOURCES)) for place in (runs / "a", [runs / "a"] * 2)
        )
        for one, other in zip(alone, twice, strict=True):
            assert (one.texts, one.pieces, one.alignments) == (other.texts, other.pieces, other.alignments)
            scores = [[hypothesis.score for hypothesis in each.hypotheses] for each in (one, other)]
            assert scores[0] == pytest.approx(scores[1], rel=1e-4)


def test_models_that_do_not_belong_together_are_refused(runs):
    with pytest.raises(InputError, match=r"TFK106 .*other has another tokeniser of the source than .*a, so their ids"):
        Translator.load([runs / "a", runs / "other"])
    models = [load(runs / "a"), load(runs / "other")]
    with pytest.raises(InputError, match="TFK106 model 2 of the ensemble has vocab_size 80 at its source"):
        Translator(models, Translator.load(runs / "a").tokenisers)
    for chosen, ensemble in (([], "probabilities"), (models[:1] * 2, "sum")):
        with pytest.raises(InputError, match="TFK078"):
            Translator(chosen, Translator.load(runs / "a").tokenisers, ensemble=ensemble)
    with pytest.raises(InputError, match="TFK078"):
        Translator.load([])
