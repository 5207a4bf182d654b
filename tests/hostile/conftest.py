"""Good inputs that every test here reads, and what runs the commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from hostile.harness import Runner
from hostile.inputs import make_good


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good inputs, which no test changes. One process of pytest makes them for all."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    folder, made = place / "good", place / "good-is-made"
    with FileLock(place / "good.lock"):
        if not made.exists():
            folder.mkdir()
            make_good(folder)
            made.touch()
    return folder


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(tmp_path_factory.mktemp("runner"))
