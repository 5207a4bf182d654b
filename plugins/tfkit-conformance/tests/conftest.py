"""Fixtures of every test of the conformance kit."""

from functools import partial

import pytest

from fixtures import catalogue, described, drawn, one_thread

__all__ = ["catalogue", "described", "drawn", "few", "one_thread", "reduce"]


@pytest.fixture
def reduce(monkeypatch):
    """`reduce(relations=..., layers=..., cells=..., without=...)`: see `suite_reports.reduce_suite`."""
    from suite_reports import reduce_suite

    return partial(reduce_suite, monkeypatch)


@pytest.fixture
def few(reduce):
    """Replaces the relations by three of them, which is quick."""
    from tfkit_conformance.relations import RELATIONS

    wanted = ("value_times_power", "later_keys", "keys_moved")
    reduce(relations=tuple(each for each in RELATIONS if each.name in wanted))
