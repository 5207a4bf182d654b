"""Small calls and rivals for the tests of measuring; nothing here is timed in earnest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tfkit.builtin.attention.entries import EAGER
from tfkit.plugin import AttentionBackend
from tfkit_conformance.bench.cells import CELLS, Cell, Scale

COUNT = count()
SMALL = Scale(tokens=24, width=256, cache=32)


@pytest.fixture
def scale() -> Scale:
    return SMALL


@pytest.fixture
def cell_of() -> Callable[..., Cell]:
    """A cell of the list, shortened."""

    def make(name: str, length: int = 12) -> Cell:
        [found] = [cell for cell in CELLS if cell.name == name]
        return found if found.text else replace(found, length=length, window=found.window and 5)

    return make


@pytest.fixture
def backend_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[AttentionBackend, Any]]:
    """`backend_of("name", attend)`: a backend that declares what `eager` does."""
    import tfkit.builtin.attention.eager as module

    def make(name: str, attend: Callable[..., Any]) -> tuple[AttentionBackend, Any]:
        function = f"attend_{name}_{next(COUNT)}"  # a name is imported once
        monkeypatch.setattr(module, function, attend, raising=False)
        entry = replace(EAGER, name=name, attend=f"tfkit.builtin.attention.eager:{function}", prepare=None)
        return entry, entry.options()

    return make


@pytest.fixture
def no_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured but calls: ceilings of the machine and peaks of memory are numbers of this fixture."""
    from tfkit_conformance.bench import measure
    from tfkit_conformance.bench.timer import CpuClock

    for owner, name, value in (
        (measure, "ceiling_of", lambda clock, dtype, device: {"flops": 1e12, "bytes": 1e12}),
        (CpuClock, "peak", lambda self, step: step() or 1),
    ):
        monkeypatch.setattr(owner, name, value)
