"""Specs of these tests as graphs, and what a renderable looks like on a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

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
