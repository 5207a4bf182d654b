"""Fixtures of every test of the conformance kit."""

import pytest

from fixtures import catalogue, described, drawn, one_thread

__all__ = ["catalogue", "described", "drawn", "few", "one_thread"]


@pytest.fixture
def few(monkeypatch):
    """Replaces the relations by three of them, which is quick."""
    from tfkit_conformance.relations import RELATIONS
    from tfkit_conformance.suite import grade

    wanted = ("value_times_power", "later_keys", "keys_moved")
    monkeypatch.setattr(grade, "RELATIONS", tuple(each for each in RELATIONS if each.name in wanted))
