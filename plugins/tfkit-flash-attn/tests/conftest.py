"""Lets these tests run from the source tree, without the plugin being installed."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def stand_ins(monkeypatch):
    """The three packages as stand-ins in plain torch."""
    import stand_in

    for name, module in stand_in.MODULES.items():
        monkeypatch.setitem(sys.modules, name, module)
