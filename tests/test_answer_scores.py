"""Exact match and F1 of answers: examples worked by hand with the rules of SQuAD's evaluation script. What is no list of
texts."""

import pytest

from tfkit import InputError, corpus_scores
from tfkit.metrics import answer_scores


@pytest.mark.parametrize(
    ("answer", "references", "exact", "f1"),
    [
        ("The Cat!", ["cat"], 100, 100),
        ("a  cat, an\u00a0owl", ["cat owl"], 100, 100),
        ("theatre", ["atre"], 0, 0),
        ("in the year 1066", ["1066"], 0, 50),  # in, year, 1066: precision 1/3, recall 1
        ("cat cat owl", ["cat owl owl"], 0, 200 / 3),  # two words in common of three and three
        ("owl", ["the cat", "big owl", "owls"], 0, 200 / 3),  # the best reference counts
        ("", [], 100, 100),
        ("cat", [], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", [], 100, 100),  # nothing is left of it
        ("cat", ["the", "cat"], 100, 100),  # a reference without a word does not count
        ("U.S.", ["us"], 100, 100),
        ("1,000", ["1000"], 100, 100),
        ("naïve", ["naive"], 0, 0),
    ],
)
def test_examples(answer, references, exact, f1):
    found = answer_scores([answer], [references])
    assert {name: score.value for name, score in found.items()} == pytest.approx({"exact_match": exact, "f1": f1})


def test_scores_are_means_over_questions():
    found = answer_scores(["cat", "owl", "red cat", ""], [["cat"], ["cat"], ["cat"], []])
    assert found["exact_match"].value == 50
    assert found["f1"].value == pytest.approx(100 * (1 + 0 + 2 / 3 + 1) / 4)


def test_wrong_numbers():
    with pytest.raises(InputError, match="TFK102 1 answers and 2 questions"):
        answer_scores(["cat"], [["cat"], []])
    with pytest.raises(InputError, match="TFK103"):
        answer_scores([], [])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: corpus_scores("a dog", ["a dog"]), "TFK104 a list of texts is expected, and this is one str of 5"),
        (lambda: corpus_scores(["a dog"], "a dog"), "TFK104 a list of texts is expected, and this is one str of 5"),
        (lambda: corpus_scores(["a"], [["a", "b"]]), "TFK104 a text must be a str, and one is of type list"),
        (lambda: corpus_scores(["a", None], ["a", "b"]), "TFK104 a text must be a str, and one is of type NoneType"),
        (lambda: answer_scores("ab", [["a"], ["b"]]), "TFK104 a list of texts is expected, and this is one str of 2"),
        (lambda: answer_scores(["a", "b"], ["a", "b"]), "TFK104 a list of texts is expected, and this is one str of 1"),
        (lambda: answer_scores(["a"], "a"), "TFK104 a list of texts is expected, and this is one str of 1"),
    ],
)
def test_what_is_no_list_of_texts(call, message):
    with pytest.raises(InputError, match=message):
        call()
