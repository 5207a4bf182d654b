from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Done, no_lines_of_progress, tfkit, typed, usual_width  # noqa: F401
from fixtures import catalogue, one_thread, rounding  # noqa: F401
from tfkit.interop import huggingface, huggingface_match
from tfkit.interop.weight_map import shipped_maps


@pytest.fixture(scope="session")
def maps(catalogue):  # noqa: F811
    return shipped_maps(catalogue)


@pytest.fixture(scope="module", autouse=True)
def maps_are_read_once(catalogue, maps):  # noqa: F811
    """An import reads all weight maps, and the tests make a thousand imports."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (huggingface, huggingface_match):
            patch.setattr(module, "shipped_maps", lambda of: {**maps} if of is catalogue else shipped_maps(of))
        yield


@pytest.fixture
def command(tfkit: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Done]:  # noqa: F811
    """Commands run in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tfkit
