"""Tagged words: labels at first pieces, held against plain loops; `tfkit tag`; entities counted by hand; wrong files."""

import itertools
import json

import numpy as np
import pytest
import torch

from encoder_tasks import recipe_for, tagged, validations
from tfkit import Classifier, InputError, Tagger, load, load_recipe
from tfkit.cli import main
from tfkit.data import NO_LABEL, Corpus, Roles, Task, read_tokenisers
from tfkit.io import model_in
from tfkit.train import train
from tfkit.train.validation import entities_of, entity_counts, entity_score, marks_entities

pytestmark = pytest.mark.xdist_group("tagged")  # its module fixture is built once
TAGS = ["B-ANIMAL", "I-ANIMAL", "O"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagged")
    changes = ["data.held_out=40", "tokeniser.vocab_size=34"]  # few pieces: most words have several
    train(load_recipe(recipe_for(folder, "tagged", "f1", 100), changes), folder / "run")
    return folder / "run"


def test_labels_are_at_the_first_pieces(run):
    corpus = Corpus(run / "data" / "train.arrow")
    count = len(corpus)
    assert json.loads((run / "data" / "facts.json").read_text())["labels"] == TAGS
    batch = Task("tagged", Roles(None, "tokens", "out"), 34).batch(corpus, range(count), np.random.default_rng(0))
    (tokeniser,) = read_tokenisers(run, ("target",)).values()
    sentences = iter(tagged(200))  # those of the corpus are some of these, in order
    several = 0
    for row in range(count):
        ids, labels = batch.inputs["tokens"][row].tolist(), batch.labels[row].tolist()
        text = tokeniser.decode(ids[1 : int(batch.lengths["tokens"][row]) - 1])
        sentence = next(each for each in sentences if " ".join(word for word, _ in each) == text)
        expected = [NO_LABEL]
        for word, tag in sentence:
            pieces = tokeniser.encode([word])[0]
            expected += [TAGS.index(tag), *[NO_LABEL] * (len(pieces) - 1)]
            several += len(pieces) > 1
        assert labels == expected + [NO_LABEL] * (len(labels) - len(expected))
    assert several > 200
    assert batch.target_tokens == int((batch.labels != NO_LABEL).sum())


def test_entities_are_learnt(run):
    scores = validations(run)[-1]["scores"]
    assert set(scores) == {"accuracy", "f1"}
    assert scores["f1"] > 90


def test_tags_of_the_tagger_are_those_of_validation(run):
    tagger, corpus = Tagger.load(run), Corpus(run / "data" / "validation.arrow")
    lines = corpus.text("target_text", len(corpus))
    rows = [[label for label in row.tolist() if label != NO_LABEL] for row in corpus.rows("tags", range(len(corpus)))]
    labels = [TAGS[label] for row in rows for label in row]
    tags = [tag for made in tagger.tag(lines) for tag in made.tags]
    right = [one == other for one, other in zip(tags, labels, strict=True)]
    best = [each for each in validations(run) if each["best"]][-1]
    assert 100 * sum(right) / len(right) == best["scores"]["accuracy"]


def test_probabilities_are_torchs_softmax_at_first_pieces(run):
    tagger, model = Tagger.load(run), load(model_in(run)).eval()
    (made,) = tagger.tag(["the old cat sees  the dog"])
    assert made.words == ("the", "old", "cat", "sees", "the", "dog")
    pieces = tagger.tokeniser.encode(list(made.words))
    firsts = [1 + sum(map(len, pieces[:number])) for number in range(len(pieces))]
    with torch.no_grad():
        logits = model(tokens=torch.tensor([[1, *itertools.chain.from_iterable(pieces), 2]]))["out"][0, firsts]
    best = logits.softmax(-1).max(-1)
    assert made.tags == tuple(TAGS[number] for number in best.indices.tolist())
    torch.testing.assert_close(torch.tensor(made.probabilities), best.values, rtol=1e-5, atol=1e-6)


def test_a_long_line_is_read_in_parts(run):
    words = [word for sentence in tagged(30, seed=5) for word, _ in sentence]
    (made,) = Tagger.load(run, max_length=9).tag([" ".join(words)])
    assert made.words == tuple(words)
    assert len(made.tags) == len(words)
    assert list(Tagger.load(run).tag(["", "   "])) == [made.__class__((), (), ())] * 2
    with pytest.raises(InputError, match="a text must be a str, and one is of type int"):
        list(Tagger.load(run).tag([3]))


def test_the_command(run, capsys, typed):
    typed(b"the old cat\n\ndog sees\n")
    assert main(["tag", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [len(line.split()) for line in lines] == [3, 0, 2]
    typed(b"the old cat\n")
    assert main(["tag", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["words"] == ["the", "old", "cat"]
    assert found["tags"] == lines[0].split()
    typed(b"the old cat\n" + b"a" * 32_768 + b"\n" + b"a " * 16_385)
    assert main(["tag", str(run)]) == 2
    done = capsys.readouterr()
    assert [len(line.split()) for line in done.out.splitlines()] == [3, 1]
    assert "<stdin>:3:1: TFK101 the line has 32,770 bytes, and at most 32,768 are tagged" in done.err


def test_other_commands_name_this_one(run):
    with pytest.raises(InputError, match=r"TFK107 .*it tags words; use `tfkit tag`"):
        Classifier.load(run)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", set()),
        ("B-A I-A O B-B", {("A", 0, 2), ("B", 3, 4)}),
        ("B-A B-A I-A", {("A", 0, 1), ("A", 1, 3)}),
        ("I-A I-A", {("A", 0, 2)}),
        ("B-A I-B I-B", {("A", 0, 1), ("B", 1, 3)}),
        ("O I-A O I-A", {("A", 1, 2), ("A", 3, 4)}),
    ],
)
def test_entities_by_hand(tags, expected):
    assert entities_of(tags.split()) == expected


def test_counts_by_hand():
    names = ["O", "B-A", "I-A", "B-B"]
    labels = torch.tensor([[-100, 1, 2, -100, 0, 3], [-100, 1, 0, 1, -100, -100]])
    predicted = torch.tensor([[3, 1, 2, 1, 0, 1], [0, 1, 2, 1, 3, 3]])  # right: A at 0-2; A at the third word of row 2
    assert entity_counts(predicted, labels, -100, names) == (2, 4, 4)
    score = entity_score(2, 4, 4)
    assert score.value == 50.0
    assert entity_score(0, 0, 0).value == 0.0
    assert [marks_entities(tags) for tags in (["O", "B-A"], ["O"], ["NN", "VB"], [])] == [True, False, False, False]


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("the O\ndog\n", [], r"t.conll:2:1: TFK126 the line has 1 column, and a tag is in column 2"),
        ("the O\nNew York B-X\n", [], r"t.conll:2:1: TFK126 the line has 3 columns, the lines before have 2"),
        ("the O\n", ["data.label_column=4"], r"t.conll:1:1: TFK126 the line has 2 columns, and a tag is in column 4"),
        ("\n\n", [], r"TFK103 .*no line of 2 has text"),
        ("the O\ndog O\n", [], r"TFK115 data: every row has the label `O`"),
        ("the DET\ndog NOUN\n\n" * 40, [], r"TFK112 validation.metric: F1 is that of entities, and the tags are `DET`, `NOUN`"),
        ("the O\ndog B-X\n\n" * 40, ["data.validation_table={tmp}/v.conll"], r"v.conll:3:1: TFK115 the label `B-Z` is not in"),
        ("the O\ndog B-X\n\n" * 40, ["model.out.input=first", "model.nodes.first={{kind: pool, input: encoder, take: first}}"],
         r"TFK107 outputs over classes of tokens: none"),
    ],
)  # fmt: skip
def test_wrong_files_are_reported(tmp_path, text, changes, message):
    path = recipe_for(tmp_path, "tagged", "f1")
    (tmp_path / "t.conll").write_text(text)
    (tmp_path / "v.conll").write_text("the O\n\ncat B-Z\n")
    changes = [f"data.table={tmp_path}/t.conll", *(change.format(tmp=tmp_path) for change in changes)]
    with pytest.raises(InputError, match=message):
        train(load_recipe(path, changes), tmp_path / "run")
