"""Lets these tests run from the source tree, without the plugin being installed.

Kernels run here in Triton's interpreter (`TRITON_INTERPRET=1 pytest -m kernel plugins/tfkit-fused`) or on a CUDA device;
without either, the tests that compile them and those of the declaration are left.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

LAUNCHING = ("test_kernels", "test_operator", "test_atomic", "test_tuning", "test_command", "test_races")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """On a CUDA device what launches kernels is chosen by `-m gpu`. NumPy, which the interpreter computes with, warns of
    numbers that kernels mask out afterwards."""
    from where import DEVICE, runs

    if DEVICE == "cpu":
        from interpreted import patch

        patch()
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:triton.runtime.interpreter"))
            if runs.mark in item.iter_markers("skipif"):
                item.add_marker("kernel")
            if DEVICE == "cuda" and item.path.stem in LAUNCHING:
                item.add_marker(pytest.mark.gpu)


@pytest.fixture
def launching(monkeypatch):
    """`launching(tiles_for=..., tuner_of=..., hopper=..., tma=...)`: which tiles are offered, who measures them, and for which
    device kernels are launched."""

    def choose(tiles_for=None, tuner_of=None, hopper=None, tma=None):
        from tfkit_fused import launch

        chosen = {"tiles_for": tiles_for, "tuner_of": tuner_of}
        for name, answer in (("_is_hopper", hopper), ("_has_tma", tma)):
            chosen[name] = None if answer is None else lambda device, answer=answer: answer
        for name, function in chosen.items():
            if function is not None:
                monkeypatch.setattr(launch, name, function)

    return choose
