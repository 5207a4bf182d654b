from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, no_lines_of_progress, tfkit, usual_width  # noqa: F401
from fixtures import catalogue, one_thread, rounding  # noqa: F401


@pytest.fixture
def command(tfkit: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Done]:  # noqa: F811
    """Commands run in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tfkit
