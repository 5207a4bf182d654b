"""Fixtures that the whole suite shares."""

import pytest
from hypothesis import settings

from tfkit.catalogue import load_catalogue

settings.register_profile("tfkit", derandomize=True, deadline=None, database=None)
settings.load_profile("tfkit")


@pytest.fixture(scope="session")
def catalogue():
    """Everything installed."""
    return load_catalogue()
