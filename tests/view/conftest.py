"""Specs of these tests as graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfkit.graph import graph_of
from tfkit.spec import load_spec, parse_spec

SPECS = Path(__file__).parents[2] / "specs"


@pytest.fixture
def described(catalogue):
    """The spec and the graph of a shipped spec, or of a text."""

    def describe(source):
        spec = parse_spec(source, catalogue) if "\n" in source else load_spec(SPECS / source, catalogue)
        return spec, graph_of(spec)

    return describe
