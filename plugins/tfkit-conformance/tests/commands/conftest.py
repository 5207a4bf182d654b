"""Running commands in this process."""

from pathlib import Path

import pytest

import warm
from command_line import installed, no_lines_of_progress, small, tfkit, usual_width

__all__ = ["installed", "no_lines_of_progress", "small", "tfkit", "usual_width"]


@pytest.fixture(autouse=True)
def warm_children(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`test_child.py` has children that start cold."""
    warm.patch_children(monkeypatch, Path(tmp_path_factory.mktemp("child")) / "code.py")
