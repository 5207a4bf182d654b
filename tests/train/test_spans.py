"""Questions about texts: labels and windows held against the texts, scores, averages, `tfkit answer`, wrong recipes."""

import json

import numpy as np
import pytest
import torch

from encoder_tasks import questions, recipe_for, validations
from tfkit import Answerer, InputError, Tagger, load, load_recipe
from tfkit.cli import main
from tfkit.data import BatchShapes, Corpus, Roles, Task, read_tokenisers
from tfkit.data.spans import span_rows, windows_of
from tfkit.io import model_in
from tfkit.train import average_checkpoints, average_models, train

pytestmark = pytest.mark.xdist_group("spans")  # its module fixture is built once
CHANGES = ["data.held_out=60", "data.stride=6", "tokeniser.vocab_size=30"]  # few pieces: most words have several


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spans")
    train(load_recipe(recipe_for(folder, "spans", "f1", 140), CHANGES), folder / "run")
    return folder / "run"


def test_rows_are_windows_and_labels_are_where_answers_stand(run):
    recipe, tokenisers = load_recipe(run / "recipe.yaml"), read_tokenisers(run, ("target",))
    encode, decode = tokenisers["target"].encode, tokenisers["target"].decode
    several = without = 0
    for number, asked in enumerate(questions(100)):
        answers = [(asked["answer"], asked["answer_start"])] if asked["answer"] else []
        texts = (asked["question"], asked["context"], json.dumps(answers), f"{number + 1} 1 train.jsonl")
        question, context = encode(list(texts[:2]))
        room = 24 - 3 - len(question)
        rows = list(span_rows(iter([(number, texts)]), tokenisers, recipe))
        starts = [start for start in range(0, len(context), 6) if start == 0 or start - 6 + room < len(context)]
        assert [row.ids[0] for row in rows] == [[1, *question, 2, *context[at : at + room], 2] for at in starts]
        for row in rows:
            own = row.ids[0][len(question) + 2 : -1]
            found = [
                own[a:b] for a in range(len(own)) for b in range(a, len(own) + 1) if decode(own[a:b]).strip() == asked["answer"]
            ]
            start, end = row.span
            assert bool(start) == bool(answers and found)
            assert not start or row.ids[0][start : end + 1] == min(found, key=len)
            without += not start and bool(answers)
        several += len(rows) > 1
        assert [bool(text) for (text,) in (row.texts for row in rows)] == [True] + [False] * (len(rows) - 1)
    assert min(several, without) > 20


def test_a_batch_has_segments_and_both_ends(run):
    corpus, (tokeniser,) = Corpus(run / "data" / "train.arrow"), read_tokenisers(run, ("target",)).values()
    task = Task("spans", Roles(None, "tokens", "out", True), 34)
    batch = task.batch(corpus, range(5), np.random.default_rng(0))
    assert batch.labels.tolist() == [[corpus.numbers[name][row] for name in ("start", "end")] for row in range(5)]
    assert batch.target_tokens == 10
    first = 2 + len(tokeniser.encode(["which dog"])[0])
    for row, length in zip(batch.segments["tokens"].tolist(), batch.lengths["tokens"].tolist(), strict=True):
        assert row == [0] * first + [1] * (length - first) + [0] * (len(row) - length)
    padded = BatchShapes(corpus.lengths, 300).padded(batch, range(5), task)
    assert torch.equal(padded.labels[:5], batch.labels)
    assert (padded.labels[5:] == -100).all()


def test_answers_are_learnt_and_scores_of_validation_are_those_of_answer(run):
    best = [each for each in validations(run) if each["best"]][-1]["scores"]
    assert set(best) == {"exact_match", "f1"}
    assert best["f1"] > 85
    corpus = Corpus(run / "data" / "validation.arrow")
    asked = [json.loads(text) for text in corpus.text("target_text", len(corpus)) if text]
    assert len(asked) == 60
    made = list(Answerer.load(run).answer([(each["question"], each["context"]) for each in asked]))
    right = [each.text in (correct["answers"] or [""]) for each, correct in zip(made, asked, strict=True)]
    assert best["exact_match"] == pytest.approx(100 * sum(right) / 60)
    assert all(each.span is None or each.context[each.span.start : each.span.end] == each.text for each in made)


def test_probabilities_are_those_of_plain_loops(run):
    answerer, model = Answerer.load(run), load(model_in(run)).eval()
    question, context = "which dog", "red cat sees the old dog and a house"
    (made,) = answerer.answer([(question, context)], best=5)
    (asked,), ((ids, ranges),) = answerer.tokeniser.encode([question]), answerer.tokeniser.encode_with_ranges([context])
    before, room = len(asked) + 2, 21 - len(asked)
    found, none = {}, []
    for first in range(0, len(ids), 6):
        row = torch.tensor([[1, *asked, 2, *ids[first : first + room], 2]])
        with torch.no_grad():
            logits = model(tokens=row, segments={"tokens": (torch.arange(row.shape[1]) >= before)[None].long()})["out"][0]
        both = logits.softmax(0).tolist()
        none.append(both[0][0] * both[0][1])
        own = ranges[first : first + room]
        for start in range(len(own)):
            for end in range(start, min(start + answerer.max_answer, len(own))):
                if own[start][0] < own[start][1] and own[end][0] < own[end][1]:
                    place, score = (own[start][0], own[end][1]), both[before + start][0] * both[before + end][1]
                    found[place] = max(found.get(place, 0.0), score)
        if first + room >= len(ids):
            break
    ranked = sorted(found.items(), key=lambda each: -each[1])[:5]
    assert len(none) > 1
    assert made.no_answer == pytest.approx(min(none), rel=1e-4)
    assert [(each.start, each.end) for each in made.spans] == [place for place, _ in ranked]
    assert [each.score for each in made.spans] == pytest.approx([score for _, score in ranked], rel=1e-4)
    assert made.text == context[slice(*ranked[0][0])]


def test_answers_do_not_depend_on_the_batch(run):
    asked = [(row["question"], row["context"]) for row in questions(20, seed=5)]
    together = [each.text for each in Answerer.load(run).answer(asked)]
    answerer = Answerer.load(run, batch_tokens=1)
    assert together == [next(answerer.answer([each])).text for each in asked]
    assert {"", "dog", "old dog"} <= set(together)
    assert all(each.text for each in Answerer.load(run, unanswerable=False).answer(asked))


def test_averages_keep_how_answers_were_trained(run, tmp_path):
    average_checkpoints(run, 1, tmp_path / "one")
    average_models([tmp_path / "one", run], tmp_path / "two")
    facts = [json.loads((place / "spans.json").read_text()) for place in (model_in(run), tmp_path / "one", tmp_path / "two")]
    assert facts[0] == facts[1] == facts[2]
    assert facts[0] == {"max_length": 24, "stride": 6, "max_answer": facts[0]["max_answer"], "unanswerable": True}
    assert facts[0]["max_answer"] > 2


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("ab", "a list of texts is expected, and this is one str of 2"),
        (["ab"], "a question is a pair of texts, and one is 'ab'"),
        (("which dog", "the old dog sings"), "a question is a pair of texts, and one is 'which dog'"),
        ([("which dog",)], "a question is a pair of texts"),
        ([("which dog", 3)], "a text must be a str, and one is of type int"),
    ],
)
def test_questions_are_pairs_of_texts(run, asked, message):
    with pytest.raises(InputError, match=message):
        list(Answerer.load(run).answer(asked))


def answered(run, typed, lines, *options):
    typed(lines)
    return main(["answer", str(run), *options])


def test_the_command(run, capsys, typed):
    lines = b"which dog\tthe old dog sings\n\nwhich dog\t\n"
    assert answered(run, typed, lines) == 0
    assert capsys.readouterr().out == "old dog\n\n\n"
    assert answered(run, typed, lines, "--json", "--n-best", "2") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["answer"], each["start"], each["end"]) for each in found] == [("old dog", 4, 11), *[(None, None, None)] * 2]
    assert [len(each["spans"]) for each in found] == [2, 0, 0]
    assert answered(run, typed, "which Ω\tthe Σ dog\n".encode()) == 0
    assert (
        "<stdin>: 2 unknown tokens in 1 line, the first in line 1; the vocabulary has no such piece" in capsys.readouterr().err
    )
    assert answered(run, typed, b"which dog\tdog\n" + b"which " * 40 + b"\tthe dog\nno tab\n") == 2
    out, err = capsys.readouterr()
    assert out.startswith("dog\n")
    assert "<stdin>:2: " in err
    assert "tokens, the first 10 were read" in err
    assert "<stdin>:3:1: TFK135 the line has no tab" in err


def test_windows_that_read_a_context_very_often_are_refused():
    question, context, room = 3, 10_000, 384
    assert len(windows_of(question, context, room, 24)) == 402
    with pytest.raises(InputError, match=r"TFK136 windows of 381 tokens, 1 from one to the next, read each token 381 times"):
        windows_of(question, context, room, 1)
    assert windows_of(question, 381, room, 1) == [range(381)]


def test_other_models_and_settings(run):
    with pytest.raises(InputError, match=r"TFK107 .*it answers questions; use `tfkit answer`"):
        Tagger.load(run)
    with pytest.raises(InputError, match="TFK078"):
        Answerer.load(run, stride=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["loss.label_smoothing=0.1"], r"TFK108 loss.label_smoothing: labels are positions of answers"),
        (["validation.metric=accuracy"], r"TFK112 .*write one of loss, exact_match, f1"),
        (["batching.max_length=8"], r"train.jsonl:\d+:1: TFK136 the question has \d+ tokens, and a row has room for 5"),
        (["model.out={kind: classify, input: encoder, classes: 2}"], r"TFK107 outputs over the positions of `tokens`: none"),
    ],
)
def test_wrong_recipes(tmp_path, changes, message):
    path = recipe_for(tmp_path, "spans", "f1")
    with pytest.raises(InputError, match=message):
        train(load_recipe(path, [*CHANGES, *changes]), tmp_path / "run")
