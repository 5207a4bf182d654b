"""Classification of text: the accuracy of validation, softmax of logits, order of lines, empty and long lines, other models."""

import json

import pytest
import torch

from kinds_task import recipe_for, validations
from tfkit import Classifier, InputError, StoreError, TextGenerator, Translator, load, load_recipe, save
from tfkit.data import Corpus
from tfkit.text import model_in
from tfkit.train import train

pytestmark = pytest.mark.xdist_group("translator")  # which share a run

LINES = ["the dog sings", "", "old house", "   ", "the new tree sees the old house and the big tree"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    changes = ["stopping.max_steps=20", "validation.every_steps=10", "average=0.5", "data.held_out=90"]
    train(load_recipe(recipe_for(folder, "classification", "accuracy"), changes), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    train(load_recipe(recipe_for(folder, "language"), ["stopping.max_steps=1"]), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def classifier(run):
    return Classifier.load(run)


def test_the_accuracy_of_validation_is_the_accuracy_of_classify(run, classifier):
    best = [each for each in validations(run) if each["best"]][-1]
    corpus = Corpus(run / "data" / "validation.arrow")
    wanted = [classifier.labels[number] for number in corpus.numbers["label"]]
    made = [each.label for each in classifier.classify(corpus.text("target_text", len(corpus)))]
    right = sum(one == other for one, other in zip(made, wanted, strict=True))
    assert 100 * right / len(corpus) == best["scores"]["accuracy"]
    assert best["scores"]["accuracy"] > 60  # one label for all lines is right for about half of them
    assert set(made) == set(classifier.labels)


def test_one_text_is_no_list_of_texts(classifier):
    with pytest.raises(InputError, match="a list of texts is expected, and this is one str of 7"):
        list(classifier.classify("old dog"))


def test_probabilities_are_torchs_softmax_of_the_logits(run, classifier):
    model = load(model_in(run))
    for made in classifier.classify(["the dog sings", "old house", "red cat runs"]):
        ids = torch.tensor([[1, *classifier.tokeniser.encode([made.text])[0], 2]])
        with torch.no_grad():
            wanted = torch.nn.functional.softmax(model.eval()(words=ids)["out"][0], -1)
        # The classifier computes three lines together: other kernels, whose rounding moves logits in their fifth digit.
        torch.testing.assert_close(torch.tensor(made.distribution), wanted, rtol=1e-4, atol=1e-5)
        assert list(made.probabilities) == ["animal", "thing"]
        assert made.probability == max(made.probabilities.values()) == made.probabilities[made.label]


def test_lines_keep_their_order_and_empty_ones_their_place(classifier):
    together = list(classifier.classify(LINES))
    assert [each.text for each in together] == LINES
    alone = [next(iter(classifier.classify([line]))) for line in LINES]
    assert [each.label for each in together] == [each.label for each in alone]
    assert [each.label is None for each in together] == [False, True, False, True, False]
    assert (together[1].probability, together[1].probabilities, together[1].cut) == (None, {}, 0)
    assert [each.label for each in classifier.classify(LINES, chunk=2)] == [each.label for each in together]
    assert list(classifier.classify([])) == []


def test_lines_come_as_they_are_read(classifier):
    def lines():
        yield "the dog sings"
        raise AssertionError("one line was enough")

    assert next(classifier.classify(lines(), chunk=1)).label in classifier.labels


def test_a_long_line_is_cut_off_and_reported(run, classifier):
    (uncut,) = classifier.classify(["the old dog sees the cat"])
    (cut,) = Classifier.load(run, max_length=uncut.read - 2).classify(["the old dog sees the cat"])
    assert (uncut.cut, cut.cut, cut.read) == (0, 2, uncut.read - 2)
    ids = classifier.tokeniser.encode(["the old dog sees the cat"])[0][:-2]
    (same,) = classifier.classify([classifier.tokeniser.decode(ids)])
    assert same.distribution == pytest.approx(cut.distribution, rel=1e-5)


def test_a_text_longer_than_a_table_of_positions_is_cut(tmp_path):
    changes = ["stopping.max_steps=1", "model.words.position={kind: learned, max_len: 30}", "batching.max_length=30"]
    train(load_recipe(recipe_for(tmp_path, "classification"), changes), tmp_path / "run")
    (made,) = Classifier.load(tmp_path / "run").classify(["the dog sings " * 20])
    assert made.read == 30
    assert made.cut > 0


def test_batches_have_no_more_tokens_than_allowed_and_change_no_label(run, classifier):
    lines = [" ".join(["the dog", "big tree", "sings"][:count]) for count in (1, 2, 3)] * 9
    seen = []
    few = Classifier.load(run, batch_tokens=40)
    few.model.register_forward_pre_hook(lambda model, _, given: seen.append(given["words"].shape), with_kwargs=True)
    assert [each.label for each in few.classify(lines)] == [each.label for each in classifier.classify(lines)]
    assert len(seen) > 3
    assert all(rows * length <= 40 for rows, length in seen)


def test_the_mode_of_the_model_is_left_as_it_was(classifier):
    classifier.model.train()
    list(classifier.classify(["dog"]))
    assert classifier.model.training
    classifier.model.eval()


def test_labels_belong_to_the_model(run, classifier, tmp_path):
    with pytest.raises(InputError, match="TFK116 `out` has 2 classes, and there are 3 labels"):
        Classifier(classifier.model, classifier.tokeniser, ["a", "b", "c"])
    for labels, reason in ((["a", "a"], "classes 0 and 1 have the same label"), (["a", "b\n"], "the control character U")):
        with pytest.raises(InputError, match=f"TFK116 .*{reason}"):
            Classifier(classifier.model, classifier.tokeniser, labels)
    texts = {"tokeniser.json": (model_in(run) / "tokeniser.json").read_text()}
    save(classifier.model, tmp_path / "bare", texts=texts)
    with pytest.raises(InputError, match=r"TFK116 .*labels.json cannot be read: No such file.*that `tfkit train` wrote"):
        Classifier.load(tmp_path / "bare")
    save(classifier.model, tmp_path / "odd", texts=texts | {"labels.json": json.dumps({"a": 1})})
    with pytest.raises(StoreError, match=r"TFK082 .*labels\.json: the content: .*valid list"):
        Classifier.load(tmp_path / "odd")
    with pytest.raises(InputError, match="TFK078 max_length is 2"):
        Classifier.load(run, max_length=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "which", "message"),
    [
        (
            Classifier,
            "trained",
            "`small` is no model that classifies text: it translates; use `tfkit translate`, in Python tfkit.Tr",
        ),
        (Classifier, "decoder", "`kinds` is no model that classifies text: it continues a prompt; use `tfkit generate`"),
        (
            Translator,
            "run",
            "`kinds` is no model that translates: it classifies text; use `tfkit classify MODEL`, in Python tfkit.Class",
        ),
        (Translator, "decoder", "it continues a prompt; use `tfkit generate`, in Python tfkit.TextGenerator"),
        (TextGenerator, "run", "it classifies text; use `tfkit classify MODEL`"),
        (TextGenerator, "trained", "`small` is no model that continues a prompt: it translates; use `tfkit translate`"),
    ],
)
def test_a_model_of_another_kind_is_refused_with_the_right_command(wanted, which, message, request):
    with pytest.raises(InputError) as caught:
        wanted.load(request.getfixturevalue(which))
    assert str(caught.value).startswith("TFK107 ")
    assert message in str(caught.value)
