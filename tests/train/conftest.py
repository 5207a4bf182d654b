import shutil
from pathlib import Path

import pytest

from command_line import no_lines_of_progress, tfkit, typed, usual_width
from forced import chunked_from, most_shapes, onednn_products
from tfkit import load_recipe
from tfkit.train import train
from torchrun import ForkedJobs
from translation_task import write_task

__all__ = ["chunked_from", "most_shapes", "no_lines_of_progress", "onednn_products", "tfkit", "typed", "usual_width"]


@pytest.fixture
def task(tmp_path):
    """The path of a recipe, with its spec and its text beside it."""
    return write_task(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("finished")
    train(load_recipe(write_task(folder)), folder / "run")
    return folder / "run"


@pytest.fixture
def whole(finished, tmp_path):
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "whole"))


@pytest.fixture(scope="session")
def fork_jobs():
    """Runs jobs, scripts and torchrun in several processes: see `torchrun.ForkedJobs`."""
    found = ForkedJobs()
    yield found
    found.close()
