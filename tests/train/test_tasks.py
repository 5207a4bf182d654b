"""Every kind of data trains the kind of model it is for; what a batch asks is held against plain loops."""

import json

import numpy as np
import pytest
import torch

from kinds_task import recipe_for, validations
from tfkit import InputError, Search, TextGenerator, load_recipe
from tfkit.data import NO_LABEL, Corpus, read_tokenisers
from tfkit.data.corpus import CorpusWriter
from tfkit.data.masking import Masking
from tfkit.data.roles import Roles
from tfkit.data.tasks import Task
from tfkit.inspection import TokenLogits
from tfkit.train import train
from translation_task import WORDS


@pytest.mark.slow
def test_a_classifier_learns_its_labels(tmp_path):
    outcome = train(load_recipe(recipe_for(tmp_path, "classification", "accuracy")), tmp_path / "run")
    assert validations(tmp_path / "run")[-1]["scores"]["accuracy"] > 90
    assert json.loads((outcome.model / "labels.json").read_text()) == ["animal", "thing"]


@pytest.mark.slow
def test_an_encoder_learns_hidden_tokens_better_than_by_their_frequency(tmp_path):
    train(load_recipe(recipe_for(tmp_path, "masked")), tmp_path / "run")
    first, last = (each["nll"] for each in validations(tmp_path / "run"))
    assert last < np.log(len(WORDS)) + 0.2  # every word is as likely as the others
    assert last <= first + 0.05


def test_training_and_validation_compute_logits_of_hidden_tokens_only_and_find_the_same(tmp_path, monkeypatch):
    recipe = load_recipe(recipe_for(tmp_path, "masked"), ["stopping.max_steps=4", "validation.every_steps=2"])
    shapes, forward = [], TokenLogits.forward

    def seen(node, context, input, table=None):
        shapes.append((torch.is_grad_enabled(), input.tensor.dim()))
        return forward(node, context, input, table)

    monkeypatch.setattr(TokenLogits, "forward", seen)
    train(recipe, tmp_path / "few")
    assert {(True, 2), (False, 2)} <= set(shapes)
    shapes.clear()
    monkeypatch.setattr("tfkit.train.loss.LARGEST_LABELLED_SHARE", 0.0)
    train(recipe, tmp_path / "all")
    assert {dimensions for _, dimensions in shapes} == {3}
    few, every = ([each["nll"] for each in validations(tmp_path / name)] for name in ("few", "all"))
    assert few == pytest.approx(every, rel=1e-4)


@pytest.mark.parametrize("held_out", [7, None])
def test_running_text_holds_out_its_end(tmp_path, held_out):
    path = recipe_for(tmp_path, "language", tokeniser="characters")
    limits = ["batching.max_length=8", "stopping.max_steps=1"]
    train(load_recipe(path, [*limits, *([f"data.held_out={held_out}"] if held_out else [])]), tmp_path / "run")
    lines = (tmp_path / "train.src").read_text().splitlines(keepends=True)
    count = held_out or len(lines) // 20
    (tokeniser,) = read_tokenisers(tmp_path / "run", ("target",)).values()
    for name, text in (("train", lines[:-count]), ("validation", lines[-count:])):
        corpus = Corpus(tmp_path / "run" / "data" / f"{name}.arrow")
        pieces = [row.tolist() for row in corpus.rows("target", range(len(corpus)))]
        joined = [*pieces[0], *(token for piece in pieces[1:] for token in piece[1:])]  # a piece begins where one ends
        assert tokeniser.decode(joined) == "".join(text)


@pytest.mark.slow
def test_a_decoder_learns_to_spell_and_goes_on(tmp_path):
    recipe = load_recipe(recipe_for(tmp_path, "language", tokeniser="characters"), ["stopping.max_steps=150"])
    outcome = train(recipe, tmp_path / "run")
    assert outcome.progress.source_tokens == 0
    generator = TextGenerator.load(tmp_path / "run")
    search = Search(kind="sample", seed=3, length_factor=0.0, extra_length=60, top_k=3)
    ((made,),) = generator.continue_all(["the dog\n"], search)
    assert made.prompt == "the dog\n"
    assert set(made.text) <= set(" \n" + "".join(WORDS))
    assert (made.read, made.cut, generator.positions) == (8, 0, None)
    assert generator.continue_all(["", "the dog\n", ""], search)[::2] == [[], []]


@pytest.fixture
def corpus(tmp_path):
    writer = CorpusWriter(tmp_path / "c.arrow", ("source", "target"), (), ("label",))
    draw = np.random.default_rng(1)
    for number in range(40):
        source, target = (draw.integers(5, 30, draw.integers(3, 9)).tolist() for _ in range(2))
        writer.add({"source": [*source, 2], "target": [1, *target, 2], "label": number % 3})
    writer.close()
    return Corpus(tmp_path / "c.arrow")


def batch(corpus, kind, hidden=0.0, rows=range(40)):
    masking = Masking("tokens", hidden, np.zeros(0, np.bool_))
    task = Task(kind, Roles("s" if kind == "parallel" else None, "t", "o"), 30, masking)
    return task.batch(corpus, list(rows), np.random.default_rng(0))


def test_teacher_forcing_by_plain_loops(corpus):
    made = batch(corpus, "parallel")
    for row, (source, target) in enumerate(
        zip(corpus.rows("source", range(40)), corpus.rows("target", range(40)), strict=True)
    ):
        assert made.inputs["s"][row].tolist()[: len(source)] == source.tolist()
        assert not made.inputs["s"][row, len(source) :].any()
        length = int(made.lengths["t"][row])
        assert made.inputs["t"][row].tolist()[:length] == [1, *target.tolist()[:-1]]
        assert not made.inputs["t"][row, length:].any()
        assert made.labels[row].tolist() == target.tolist() + [NO_LABEL] * (made.labels.shape[1] - length)
    assert made.target_tokens == sum(map(len, corpus.rows("target", range(40))))
    assert made.source_tokens == sum(map(len, corpus.rows("source", range(40))))


def test_the_next_token_by_plain_loops(corpus):
    made = batch(corpus, "language")
    for row, ids in enumerate(corpus.rows("target", range(40))):
        length = len(ids) - 1
        assert made.inputs["t"][row].tolist()[:length] == ids.tolist()[:-1]
        assert made.labels[row].tolist()[:length] == ids.tolist()[1:]
        assert (made.labels[row, length:] == NO_LABEL).all()
        assert int(made.lengths["t"][row]) == length


def test_hidden_keys(corpus):
    made = batch(corpus, "masked", 0.3, [*range(40)] * 50)
    given, labels = made.inputs["t"], made.labels
    hidden = labels != NO_LABEL
    whole = torch.where(hidden, labels, given)
    for row, ids in enumerate(corpus.rows("target", [*range(40)] * 50)):
        assert whole[row].tolist()[: len(ids)] == ids.tolist()
        assert not hidden[row, 0]
        assert not hidden[row, len(ids) - 1 :].any()
    assert hidden.any(1).all()
    inside = int(made.lengths["t"].sum()) - 2 * len(given)
    assert made.target_tokens == int(hidden.sum())
    assert abs(made.target_tokens / inside - 0.3) < 0.03
    masks = (given[hidden] == 4).float().mean()
    same = (given[hidden] == labels[hidden]).float().mean()
    assert abs(float(masks) - 0.8) < 0.02
    assert abs(float(same) - (0.1 + 0.1 / 25)) < 0.02


def test_a_class_is_one_label(corpus):
    made = batch(corpus, "classification", rows=[3, 1, 2])
    assert made.labels.tolist() == [0, 1, 2]
    assert made.target_tokens == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("classification", ["data.label_column=3"], r"text.tsv:1:1: TFK115 the line has 2 columns, but .* column 3"),
        ("classification", ["data.table={tmp}/same.tsv"], "every row has the label `x`"),
        ("classification", ["data.validation_table={tmp}/other.tsv"], r"other.tsv:2:1: TFK115 the label `plant` is not in"),
        ("classification", ["validation.metric=bleu"], r"TFK112 validation.metric: `bleu` cannot be computed"),
        ("language", ["tokeniser.joint=false"], r"tokeniser.joint=false:1:17: TFK106 .*`language` have one text, and so"),
        ("language", ["validation.metric=accuracy"], r"TFK112 .*write one of loss"),
        ("masked", ["data={{kind: language, text: {tmp}/train.src}}"], "`language` need one input that is pred"),
        ("language", ["data={{kind: masked, text: {tmp}/train.src}}"], r"words \(predicted\)"),
        ("masked", ["data={{kind: classification, table: {tmp}/text.tsv}}"], "TFK107 outputs over classes: none"),
    ],
)  # fmt: skip
def test_data_that_do_not_fit_are_reported(tmp_path, kind, changes, message):
    path = recipe_for(tmp_path, kind)
    (tmp_path / "same.tsv").write_text("a\tx\nb\tx\n")
    (tmp_path / "other.tsv").write_text("the dog\tanimal\nthe tree\tplant\n")
    with pytest.raises(InputError, match=message):
        train(load_recipe(path, [change.format(tmp=tmp_path) for change in changes]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_header_is_no_row(tmp_path):
    path = recipe_for(tmp_path, "classification")
    (tmp_path / "text.tsv").write_text("text\tlabel\n" + (tmp_path / "text.tsv").read_text())
    train(load_recipe(path, ["data.header=true", "stopping.max_steps=1"]), tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "data" / "facts.json").read_text())
    assert facts["labels"] == ["animal", "thing"]
    assert facts["corpora"]["train"]["read"] + facts["corpora"]["validation"]["read"] == 400
    assert read_tokenisers(tmp_path / "run", ("target",))["target"].size > 4
