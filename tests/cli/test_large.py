"""A model of very many layers is made only if the user asks for it."""

from __future__ import annotations

import re

import pytest

from command_line import SMALL
from tfkit.cli import main


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    return str(tmp_path / "small.yaml")


@pytest.mark.parametrize("name", ["build", "eject"])
def test_many_layers_need_the_option(name, small, capsys):
    deep = ["--set", "encoder.num_layers=2000"]
    assert main([name, small, *deep]) == 2
    assert re.fullmatch(
        r"TFK045 `small` has 2,008 layers and nodes with [\d,]+ parameters; "
        r"more than 1,000 take minutes: pass --large to make them, or use fewer\n",
        capsys.readouterr().err,
    )
    assert main(["check", small, *deep]) == 0


@pytest.mark.parametrize("words", [["--set", "encoder.num_layers=900"], ["--large", "--set", "encoder.num_layers=1200"]])
def test_fewer_layers_and_the_option_make_it(words, small, capsys):
    assert main(["eject", small, *words]) == 0
    assert not capsys.readouterr().err
