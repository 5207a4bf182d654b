"""What the tiers depend on: one worker for each group, so that its fixtures are built once, and long tests first."""

import os
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from tiers import LONG_FIRST, Tiers, share_of, tier_of

GROUPED = """
import pytest

pytestmark = pytest.mark.xdist_group("together")

@pytest.mark.parametrize("number", range(6))
def test_a_worker(number, worker_id):
    with open("workers", "a") as file:
        file.write(worker_id + "\\n")
"""


@pytest.mark.slow
def test_a_group_of_tests_runs_in_one_worker(tmp_path):
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "--dist=loadgroup", "test_grouped.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    workers = (tmp_path / "workers").read_text().split()
    assert (done.returncode, len(workers), len(set(workers))) == (0, 6, 1), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("module", "code"), [("pytest_stranger", 0), ("tfkit.stranger", 3), ("torch.stranger", 3)])
def test_a_warning_of_another_plugin_of_pytest_is_no_error(module, code, tmp_path):
    plugin = f"""
import warnings
import pytest

@pytest.hookimpl(trylast=True)
def pytest_configure():
    warnings.warn_explicit("a stranger's warning", UserWarning, "stranger.py", 1, module={module!r})
"""
    (tmp_path / "stranger.py").write_text(plugin)
    shutil.copy(Path(__file__).parents[1] / "pyproject.toml", tmp_path)
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "stranger", "-n", "0", "-m", "", "test_nothing.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr


class Item:
    def __init__(self, number: int) -> None:
        self.number, self.marker = number, ("", "slow", "exhaustive")[number % 3]

    def get_closest_marker(self, name: str) -> bool:
        return name == self.marker


def test_long_tests_are_first_and_otherwise_keep_their_order():
    items = [Item(number) for number in range(1500)]
    Tiers("1/1").pytest_collection_modifyitems(None, items)
    assert [LONG_FIRST.index(tier_of(item)) for item in items] == [0] * 500 + [1] * 500 + [2] * 500
    assert [item.number for item in items[:500]] == list(range(2, 1500, 3))
    few = [Item(number) for number in range(9)]
    Tiers("1/1").pytest_collection_modifyitems(None, few)
    assert [item.number for item in few] == list(range(9))


def test_every_exhaustive_test_is_in_one_share(tmp_path):
    names = [f"tests/test_{number}.py::test[{number}]" for number in range(300)]
    shares = [[name for name in names if share_of(name, 3) == number] for number in (1, 2, 3)]
    assert sorted(chain(*shares)) == sorted(names)
    assert min(map(len, shares)) > 60
    file = Path(__file__).with_name("product") / "test_kills.py"
    found = []
    for share in ("1/3", "2/3", "3/3", "1/1"):
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--collect-only", "-m", "exhaustive", str(file)]
        done = subprocess.run(command, env={**os.environ, "TFKIT_SHARE": share}, capture_output=True, text=True, check=True)
        found.append([line for line in done.stdout.splitlines() if "::" in line])
    assert sorted(chain(*found[:3])) == sorted(found[3])
    assert len(found[3]) == 16
