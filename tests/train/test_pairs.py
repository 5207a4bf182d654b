"""Pairs of texts: what the model reads, held against plain loops; labels by `tfkit classify`; wrong tables."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from encoder_tasks import pairs, recipe_for, validations
from tfkit import Classifier, InputError, StoreError, load, load_recipe, save
from tfkit.data import NO_LABEL, BatchShapes, Corpus, Roles, Task, read_tokenisers
from tfkit.io import model_in
from tfkit.train import average_checkpoints, average_models, train

pytestmark = pytest.mark.xdist_group("pairs")  # its module fixture is built once


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    train(load_recipe(recipe_for(folder, "pairs", "accuracy", 60), ["data.held_out=60"]), folder / "run")
    return folder / "run"


def test_a_pair_is_one_row_of_two_segments(run):
    corpus = Corpus(run / "data" / "train.arrow")
    count = len(corpus)
    batch = Task("pairs", Roles(None, "tokens", "out", True), 50).batch(corpus, range(count), np.random.default_rng(0))
    (tokeniser,) = read_tokenisers(run, ("target",)).values()
    labels = json.loads((run / "data" / "facts.json").read_text())["labels"]
    rows = iter(pairs(400))  # the rows of the corpus are some of these, in order
    for row in range(count):
        ids, length = batch.inputs["tokens"][row].tolist(), int(batch.lengths["tokens"][row])
        end = ids.index(2)
        first, second = tokeniser.decode(ids[1:end]), tokeniser.decode(ids[end + 1 : length - 1])
        assert (ids[0], ids[length - 1]) == (1, 2)
        assert (first, second, labels[batch.labels[row]]) in rows
        assert batch.segments["tokens"][row].tolist() == [0] * (end + 1) + [1] * (length - end - 1) + [0] * (len(ids) - length)
    assert set(batch.arguments) == {"lengths", "segments", "tokens"}


def test_a_model_without_segments_gets_none(run):
    corpus = Corpus(run / "data" / "train.arrow")
    batch = Task("pairs", Roles(None, "tokens", "out", False), 50).batch(corpus, range(3), np.random.default_rng(0))
    assert set(batch.arguments) == {"lengths", "tokens"}


def test_the_order_of_texts_is_learnt(run):
    assert validations(run)[-1]["scores"]["accuracy"] > 90


def test_classify_gives_the_labels_of_validation(run):
    classifier = Classifier.load(run)
    corpus = Corpus(run / "data" / "validation.arrow")
    texts = [tuple(text.split("\t")) for text in corpus.text("target_text", len(corpus))]
    made = list(classifier.classify(texts))
    right = sum(classifier.labels[number] == each.label for number, each in zip(corpus.numbers["label"], made, strict=True))
    best = [each for each in validations(run) if each["best"]][-1]
    assert 100 * right / len(corpus) == best["scores"]["accuracy"]
    model = load(model_in(run)).eval()
    for (first, second), each in zip(texts[:5], made, strict=False):
        one, other = classifier.tokeniser.encode([first, second])
        segments = torch.tensor([[0] * (len(one) + 2) + [1] * (len(other) + 1)])
        with torch.no_grad():
            logits = model(tokens=torch.tensor([[1, *one, 2, *other, 2]]), segments={"tokens": segments})["out"][0]
        torch.testing.assert_close(torch.tensor(each.distribution), logits.softmax(-1), rtol=1e-5, atol=1e-6)


def test_averaged_models_still_read_pairs_and_each_is_read_once(run, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr("tfkit.train.averaging.load", lambda place: read.append(place) or load(place))
    average_checkpoints(run, None, tmp_path / "mean")
    read.clear()
    average_models([run, model_in(run)], tmp_path / "models")
    assert read == [model_in(run)] * 2
    for place in (tmp_path / "mean", tmp_path / "models"):
        assert Classifier.load(place).pairs
        assert Classifier.load(place).labels == ("left", "right")


def test_models_whose_labels_differ_have_no_mean(run, tmp_path):
    model, texts = load(model_in(run)), {"tokeniser.json": (model_in(run) / "tokeniser.json").read_text()}
    for name, labels in (("other", ["right", "left"]), ("none", None)):
        more = {"pair-labels.json": json.dumps(labels)} if labels else {}
        save(model, tmp_path / name, texts=texts | more)
        with pytest.raises(StoreError, match=r"TFK114 .*pair-labels.json is not that of"):
            average_models([run, tmp_path / name], tmp_path / "mean-of-two")


def test_rows_that_complete_a_shape_have_no_labels(run):
    corpus = Corpus(run / "data" / "train.arrow")
    shapes = BatchShapes(corpus.lengths, 100)
    task = Task("pairs", Roles(None, "tokens", "out", True), 50)
    rows = next(each for each in shapes.epoch(0, 1).batches if len(each) < shapes.of(each).rows).tolist()
    batch = task.batch(corpus, rows, np.random.default_rng(0))
    batch = replace(batch, other_labels={"next": batch.labels})
    full = shapes.padded(batch, rows, task)
    count, width = batch.segments["tokens"].shape
    assert full.segments["tokens"].shape == full.inputs["tokens"].shape
    assert torch.equal(full.segments["tokens"][:count, :width], batch.segments["tokens"])
    assert not full.segments["tokens"][:, width:].any()
    for labels in (full.labels, full.other_labels["next"]):
        assert torch.equal(labels[:count], batch.labels)
        assert (labels[count:] == NO_LABEL).all()
        assert len(labels) > count


@pytest.mark.parametrize(("first", "second", "kept"), [(9, 2, (6, 2)), (2, 9, (2, 6)), (9, 9, (4, 4)), (3, 4, (3, 4))])
def test_the_longer_text_is_cut(run, first, second, kept):
    classifier = Classifier.load(run, max_length=11)
    ids, _ = classifier._ids([[7] * first, [8] * second])
    assert (ids.count(7), ids.count(8)) == kept
    assert len(ids) == min(11, first + second + 3)


def test_a_pair_with_an_empty_text_has_no_label(run):
    made = list(Classifier.load(run).classify([("", "dog"), ("the dog", "cat"), ("", "")]))
    assert [each.label is None for each in made] == [True, False, True]
    with pytest.raises(InputError, match=r"TFK115 a line has 1 text; give tuples of two texts"):
        list(Classifier.load(run).classify(["the dog"]))


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        ("a\tb\tx\nc\n", [], r"t.tsv:2:1: TFK115 the line has 1 column, but the recipe names column 3"),
        ("a\tx\nb\ty\n", [], r"t.tsv:1:1: TFK115 the line has 2 columns, but the recipe names column 3"),
        ("1\ta\tb\tx\n", [], r"4 columns, and nothing says .*`data.text_column`, `data.second_column` and `data.label_column`"),
        ("a\tb\tx\na\tb\t\n", [], r"t.tsv:2:1: TFK115 the label, column 3, is empty"),
        ("a\tb\tx\nb\tc\ty\n" * 30, ["data.validation_table={tmp}/v.tsv"], r"v.tsv:1:1: TFK115 the label `z` is not in"),
        ("a\t\tx\nb\t\ty\n" * 30, [], r"TFK103 data: no row of .*t.tsv is left"),
    ],
)  # fmt: skip
def test_wrong_tables_are_reported(tmp_path, table, changes, message):
    path = recipe_for(tmp_path, "pairs")
    (tmp_path / "t.tsv").write_text(table)
    (tmp_path / "v.tsv").write_text("a\tb\tz\n")
    changes = [f"data.table={tmp_path}/t.tsv", *(change.format(tmp=tmp_path) for change in changes)]
    with pytest.raises(InputError, match=message):
        train(load_recipe(path, changes), tmp_path / "run")
