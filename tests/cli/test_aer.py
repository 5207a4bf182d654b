"""`tfkit aer`: the counts of Och and Ney by hand, both marks of possible links, and files that hold something else."""

import pytest

HYPOTHESIS = "0-0 1-1 2-2\n\n0-1 0-1 3-0\n"
GOLD = "0-0 1?1 2-3\n0-0\n0p1 3-0\n"
# A: 3 + 0 + 2; S: 2 + 1 + 1; in A and S: 1 + 0 + 1; in A and P: 2 + 0 + 2


@pytest.fixture
def files(tmp_path):
    for name, text in (("out", HYPOTHESIS), ("gold", GOLD), ("from-one", "1-1 2?2 3-4\n1-1\n1p2 4-1\n")):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_scores_are_those_of_the_counts(tfkit, files):
    expected = {"aer": 100 * (1 - (2 + 4) / (5 + 4)), "precision": 100 * 4 / 5, "recall": 100 * 2 / 4}
    assert tfkit("aer", files / "out", files / "gold", "--json").json() == pytest.approx(expected)
    assert tfkit("aer", files / "out", files / "from-one", "--one-based", "--json").json() == pytest.approx(expected)
    assert tfkit("aer", files / "out", files / "gold").out.splitlines() == [
        "AER         33.33  5 links, 4 sure ones in the gold alignment",
        "precision   80.00  4 of 5 links are sure or possible",
        "recall      50.00  2 of 4 sure links are there",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n1:2 0-0\n\n", "out:2:1: TFK137 `1:2` is no link; a link is `0-2`"),
        ("0-0\n0-0  1?0\n\n", "out:2:1: TFK137 the link of word 1 and word 0 is marked as possible"),
        ("0-0\n0-0 1234567-0\n\n", "out:2:5: TFK137 `1234567-0` is no link"),
        ("0-0\n0-0\u00a01-1\n\n", "out:2:1: TFK137 `0-0\\xa01-1` is no link"),
        ("0-0\n0-0 0-0\r1-1\n\n", "out:2:5: TFK137 `0-0\\r1-1` is no link"),
        ("0-0\n\n", "TFK102 the files have different numbers of lines"),
        ("", "TFK102"),
    ],
)
def test_other_files_are_refused_with_their_place(tfkit, files, text, message):
    (files / "out").write_text(text)
    done = tfkit("aer", files / "out", files / "gold")
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_files_without_links_have_no_score(tfkit, files):
    (files / "out").write_text("\n\n\n")
    done = tfkit("aer", files / "out", files / "out")
    assert done.code == 2
    assert "TFK103 there is no link to score" in done.err
    (files / "zero").write_text("0-0\n\n\n")
    assert "zero:1:1: TFK137 `0-0` names the word 0" in tfkit("aer", files / "out", files / "zero", "--one-based").err
