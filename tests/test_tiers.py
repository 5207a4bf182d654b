"""What the tiers depend on: tests of one group run in one worker, so that their module's fixtures are built once."""

import os
import subprocess
import sys

import pytest

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
