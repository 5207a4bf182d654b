"""`tfkit rescore` from the command line: two files, standard input, JSON, and rows without a log-probability."""

import json

import pytest

from tfkit.cli import main
from translation_task import write_task

pytestmark = pytest.mark.xdist_group("translating")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rescored")
    assert main(["train", str(write_task(folder)), "-o", str(folder / "run"), "--set", "stopping.max_steps=2"]) == 0
    return folder / "run"


def test_files_and_standard_input_give_the_same(tfkit, run, tmp_path, typed):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("the dog\n\nred cat\nthe\n")
    target.write_text("la hundo\n\nrubo kato\n\n")
    by_files = tfkit("rescore", run, source, target)
    assert by_files.code == 0
    first, empty, third, half = by_files.out.split("\n")[:-1]
    assert float(first) < 0
    assert float(third) < 0
    assert empty == half == ""
    assert by_files.err == f"{target}:4: the target is empty; the row has no log-probability\n"
    typed(b"the dog\tla hundo\n\nred cat\trubo kato\nthe\t\n")
    by_pairs = tfkit("rescore", run, "--json", "--batch-tokens", 1)
    rows = [json.loads(line) for line in by_pairs.out.splitlines()]
    assert [f"{row['log_probability']:.4f}" for row in rows if row["log_probability"]] == [first, third]
    assert rows[0]["source"] == "the dog"
    assert sum(rows[0]["token_log_probabilities"]) == pytest.approx(rows[0]["log_probability"])
    assert len(rows[0]["pieces"]) == len(rows[0]["token_log_probabilities"])
    assert rows[3]["reason"] == "the target is empty"


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        ((), b"the dog\n", "<stdin>:1:1: TFK115 the line has 0 tabs, and a row is a source and its translation"),
        (("one",), b"", "the model reads two files, sources and translations, and 1 are named"),
        (("two", "three"), b"", "TFK102"),
        (("two", "absent"), b"", "TFK100"),
    ],
)
def test_what_is_no_pair_is_refused(tfkit, run, tmp_path, typed, words, text, message):
    for name, text in {"one": "a\n", "two": "a\nb\n", "three": "a\nb\nc\n"}.items():
        (tmp_path / name).write_text(text)
    typed(text)
    done = tfkit("rescore", run, *[tmp_path / word for word in words])
    assert done.code == 2
    assert message in done.err
