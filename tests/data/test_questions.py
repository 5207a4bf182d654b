"""Files of questions: three forms hold the same, errors have places; the characters of pieces of any text."""

import gzip
import json

import pytest
from hypothesis import example, given, settings, strategies as st

from tfkit import InputError
from tfkit.data.questions import location_of, questions
from tfkit.data.tokeniser import train_tokeniser
from tfkit.recipe import recipe_of

GOOD = {"question": "who?", "context": "Ada met\nBob.", "answer": "Bob", "answer_start": 8}
NONE = {"question": "when?", "context": "Ada met Bob.", "answer": ""}


def squad(*rows):
    qas = [
        {
            "id": str(at),
            "question": row["question"],
            "answers": [{"text": row["answer"], "answer_start": row["answer_start"]}] if row["answer"] else [],
        }
        for at, row in enumerate(rows)
    ]
    paragraphs = [{"context": row["context"], "qas": [qa]} for row, qa in zip(rows, qas, strict=True)]
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}


def hugging_face(row):
    answers = (
        {"text": [row["answer"]], "answer_start": [row["answer_start"]]} if row["answer"] else {"text": [], "answer_start": []}
    )
    return {"id": "x", "title": "t", "question": row["question"], "context": row["context"], "answers": answers}


def test_all_forms_hold_the_same(tmp_path):
    rows = [GOOD, NONE, {**GOOD, "question": 'say "question": or\\'}]
    flat = [{**row, "context": row["context"].replace("\n", " ")} for row in rows]
    columns = ("id", "answer_start", "answer", "context", "question")
    written = {
        "a.json": json.dumps(squad(*rows)),
        "b.json": "\ufeff" + json.dumps(squad(*rows), indent=1),
        "c.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "d.jsonl": "\n".join(json.dumps(hugging_face(row)) + "\n" for row in rows),
        "e.tsv": "\n".join(["\t".join(columns), *("\t".join(str(row.get(name, "")) for name in columns) for row in flat)]),
    }  # fmt: skip
    expected = [(row["question"], row["context"], [["Bob", 8]] if row["answer"] else []) for row in rows]
    places = {"a.json": [1, 1, 1], "c.jsonl": [1, 2, 3], "d.jsonl": [1, 3, 5], "e.tsv": [2, 3, 4]}
    for name, text in written.items():
        (tmp_path / name).write_text(text)
        found = list(questions(str(tmp_path / name)))
        assert [number for number, _ in found] == [0, 1, 2]
        own = [(question, context, json.loads(answers)) for _, (question, context, answers, _) in found]
        assert own == [(one, two.replace("\n", " ") if name == "e.tsv" else two, three) for one, two, three in expected], name
        locations = [location_of(texts) for _, texts in found]
        if name in places:
            assert [location.line for location in locations] == places[name]
        else:
            lines = text.splitlines()
            assert all(lines[each.line - 1][each.column - 1 :].startswith('"question": ') for each in locations)
    with gzip.open(tmp_path / "f.jsonl.gz", "wt") as file:
        file.write(written["c.jsonl"])
    assert len(list(questions(str(tmp_path / "f.jsonl.gz")))) == 3


HEAD = "question\tcontext\tanswer\tanswer_start\n"
WRONG = {
    "another place": ("a.jsonl", [GOOD, {**GOOD, "answer_start": 5}], r":2:1: TFK135 .*`et\\n` stands; its first place is 8"),
    "nowhere": ("a.jsonl", [{**GOOD, "answer": "Tim"}], r":1:1: TFK135 .*it is nowhere in the context"),
    "beyond the end": ("a.jsonl", [{**GOOD, "answer_start": 50}], r"beyond the end of the context, 12; its first place is 8"),
    "a start that is a text": ("a.jsonl", [{**GOOD, "answer_start": "8"}], r"the start of the answer `Bob` is `\"8\"`"),
    "a negative start": ("a.jsonl", [{**GOOD, "answer_start": -1}], r"the start of the answer `Bob` is `-1`"),
    "a list without an end": ("a.jsonl", [{**GOOD, "answers": {"text": ["Bob"], "answer_start": []}}], r"`Bob` is `null`"),
    "no list": ("a.jsonl", [{**GOOD, "answers": {"text": "Bob", "answer_start": 8}}], r"`answers` has a value that is no list"),
    "answers of another kind": ("a.jsonl", [{**GOOD, "answers": [3]}], r"`answers` is no list of objects"),
    "no context": ("a.jsonl", [{"question": "who?"}], r"`context` is missing"),
    "no answer": ("a.jsonl", [{"question": "who?", "context": "Bob"}], r"`answer` is missing"),
    "an answer that is null": ("a.jsonl", [{**GOOD, "answer": None}], r":1:1: TFK135 an answer has no text"),
    "a column twice": (
        "a.tsv", HEAD.replace("question", "question\tanswer") + "who?\tBo\tBob\tBob\t0\n",
        r"two columns are named `answer`",
    ),
    "very many answers": (
        "a.jsonl", [{**GOOD, "answers": [{"text": "Bob", "answer_start": 8}] * 1001}],
        r":1:1: TFK135 the question has 1,001 answers",
    ),
    "a number": ("a.jsonl", [{**GOOD, "context": 3}], r"`context` is no text"),
    "no object": ("a.jsonl", [[1]], r":1:1: TFK135 the line is no object"),
    "no JSON": ("a.jsonl", "{nope\n", r":1:1: TFK135 the line is not valid JSON"),
    "nothing": ("a.jsonl", "\n\n", r"TFK103 .*no question"),
    "an empty table": ("a.tsv", "", r":1:1: TFK135 the table has no column `question`, `context`, `answer`, `answer_start`"),
    "commas": ("a.csv", HEAD.replace("\t", ","), r":1:1: TFK135 the table has no column `question`"),
    "one column": ("a.tsv", HEAD + "who?\n", r":2:1: TFK135 the line has 1 columns, line 1 has 4"),
    "no start": ("a.tsv", HEAD + "who?\tBob\tBob\t\n", r":2:1: TFK135 the start of the answer `Bob` is `\"\"`"),
    "a document of another form": ("a.json", "{}", r":1:1: TFK135 `data` is no list of objects"),
    "a document that is cut off": ("a.json", '{"data": [', r":1:1: TFK135 it is not valid JSON"),
    "a place in a document": ("a.json", json.dumps(squad(GOOD, {**GOOD, "answer_start": 7})), r":1:230: TFK135 .*character 7"),
    "a document without a question": ("a.json", '{"data": []}', r"TFK103 .*no question"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files(name, tmp_path):
    file, rows, message = WRONG[name]
    (tmp_path / file).write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=message):
        list(questions(str(tmp_path / file)))


RECIPE = "tfkit: 1\nname: t\nmodel: m.yaml\ntokeniser: {kind: %s}\nstopping: {max_steps: 1}\n"
TEXTS = ["The cat, which sat on the mat; café e\u0301 ½ ﬁne 東京 x_y 3.14 it's", "abcdefghijklmnopqrstuvwxyz"] * 3
TOKENISERS = {
    kind: train_tokeniser(recipe_of(RECIPE % written, "r.yaml", []).tokeniser, TEXTS, 330)
    for kind, written in {
        "bpe": "bpe", "lower case": "bpe, lowercase: true", "unigram": "unigram", "characters": "characters",
        "nfc": "bpe, normalise: nfc, byte_fallback: false",
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("kind", TOKENISERS)
@settings(max_examples=40, deadline=None)
@given(st.text(st.sampled_from("ab ,.\t\n\u00a0e\u0301é½ﬁ東🙂▁İx"), max_size=30))
@example("  The cat,   sat ½ on\tthe ﬁne e\u0301x 🙂 東 mat▁x  ")
@example("")
def test_pieces_cover_the_characters_of_a_text(kind, text):
    """Every character but white space is in a piece, pieces are in order and have no white space at their ends."""
    ((ids, ranges),) = TOKENISERS[kind].encode_with_ranges([text])
    assert ids == TOKENISERS[kind].encode([text])[0]
    covered = {at for start, end in ranges for at in range(start, end)}
    assert covered >= {at for at, letter in enumerate(text) if not letter.isspace()}
    assert all(text[start:end] == text[start:end].strip() for start, end in ranges)
    assert [start for start, _ in ranges] == sorted(start for start, _ in ranges)
    assert all(0 <= start <= end <= len(text) for start, end in ranges)
