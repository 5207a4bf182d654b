"""Fixtures that the whole suite shares."""

from importlib.metadata import entry_points

import pytest
from hypothesis import settings

from tfkit.catalogue import load_catalogue

settings.register_profile("tfkit", derandomize=True, deadline=None, database=None)
settings.load_profile("tfkit")


@pytest.fixture(scope="session")
def catalogue():
    """The built-in parts, whatever plugins are installed beside them."""
    return load_catalogue(point for point in entry_points(group="tfkit") if point.name == "builtin")
