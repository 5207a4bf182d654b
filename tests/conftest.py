"""Fixtures that the whole suite shares."""

from importlib.metadata import entry_points

import pytest
from hypothesis import settings
from rich.console import Console

from tfkit.catalogue import load_catalogue

settings.register_profile("tfkit", derandomize=True, deadline=None, database=None)
settings.load_profile("tfkit")


@pytest.fixture(scope="session")
def catalogue():
    """The built-in parts, whatever plugins are installed beside them."""
    return load_catalogue(point for point in entry_points(group="tfkit") if point.name == "builtin")


@pytest.fixture
def drawn():
    """The text of renderables on a terminal of some columns, without colours."""

    def draw(*renderables, width=80):
        console = Console(width=width, highlight=False, markup=False, color_system=None)
        with console.capture() as capture:
            for renderable in renderables:
                console.print(renderable)
        return capture.get()

    return draw
