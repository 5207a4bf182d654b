"""No JSON that tfkit writes holds NaN or Infinity, which other readers of JSON refuse."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfkit.cli.callbacks import JsonLines
from tfkit.commands import parse_json
from tfkit.train import Step

ROOT = Path(__file__).parents[1]
SOURCES = [ROOT / "tfkit", *sorted(ROOT.glob("plugins/*/tfkit_*")), ROOT / "bench"]


def calls(path: Path) -> Iterator[ast.Call]:
    """The calls of json.dump and json.dumps in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "json":
            names = {alias.name for alias in node.names}
            assert not names & {"dump", "dumps"}, f"{path}:{node.lineno}: call json.dumps by its full name"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.dump", "json.dumps"):
            yield node


def test_every_writer_of_json_refuses_numbers_that_json_has_not() -> None:
    found = [(path, call) for source in SOURCES for path in sorted(source.rglob("*.py")) for call in calls(path)]
    assert len(found) > 50
    wrong = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, call in found
        if not any(each.arg == "allow_nan" and ast.unparse(each.value) == "False" for each in call.keywords)
    ]
    assert not wrong, f"without allow_nan=False: {', '.join(wrong)}"


def test_a_step_with_an_infinite_norm_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The scaler of float16 skips such a step, and training goes on."""
    step = Step(1, 1, 2.0, 2.0, 0.1, float("inf"), 3, 3, 0.5)
    JsonLines().on_step_end(step)
    found = parse_json(capsys.readouterr().out)
    assert (found["kind"], found["norm"], found["loss"]) == ("step", None, 2.0)
