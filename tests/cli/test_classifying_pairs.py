"""`tfkit classify` with a classifier of pairs: two texts on each line, with a tab between them."""

import json

import pytest

from encoder_tasks import recipe_for
from tfkit.cli import main

pytestmark = pytest.mark.xdist_group("classifying-pairs")  # its module fixture is built once


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    assert main(["train", str(recipe_for(folder, "pairs", steps=3)), "-o", str(folder / "run")]) == 0
    return folder / "run"


def test_every_pair_has_a_label(run, typed, capsys):
    typed(b"the dog\tred cat\n\nold house\tone dog\n")
    assert main(["classify", str(run), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["line"] for each in found] == [1, 2, 3]
    assert found[0]["text"] == "the dog\tred cat"
    assert found[1]["label"] is None
    assert {found[0]["label"], found[2]["label"]} <= {"left", "right"}


@pytest.mark.parametrize(("line", "count"), [(b"one text", 0), (b"a\tb\tc", 2)])
def test_a_line_that_is_no_pair_is_located(run, typed, capsys, line, count):
    typed(b"the dog\tred cat\n" + line + b"\n")
    assert main(["classify", str(run)]) == 2
    out, err = capsys.readouterr()
    assert out.strip() in ("left", "right")
    assert f"<stdin>:2:1: TFK115 the line has {count} tabs, and the classifier reads pairs" in err
