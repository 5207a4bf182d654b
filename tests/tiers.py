"""Three tiers of tests, by marker: quick (plain `pytest`), standard (`make test`) and all (`make test-all`).

A test without a marker belongs to the quick tier. `slow` moves it to the standard tier, `exhaustive` to the last one. Every
test of a tier has a budget of processor time, its child processes included. The budget is far above what a test of the tier
needs, so that a slow or busy machine stays below it.
"""

from __future__ import annotations

import gc
import getpass
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator

import pytest

from browser import missing_browser

BUDGETS = {"quick": 30.0, "slow": 240.0}
"""Seconds of processor time of one test."""
LEFT_OUT = {
    "not slow and not exhaustive": "left out: tests marked `slow` (`make test` runs them) and `exhaustive` (`make test-all`)",
    "not exhaustive": "left out: tests marked `exhaustive` (`make test-all` runs them)",
    "": "left out: nothing but tests for a missing device",
}
"""The last line of a run, by its marker expression."""

EVERY_CASE = os.environ.get("TFKIT_CASES") == "all"
"""Run every case of tests that otherwise run a selection of them. CONTRIBUTING.md lists these."""

SHARE = os.environ.get("TFKIT_SHARE", "1/1")
"""`2/3`: of the exhaustive tests run those of the second of three shares. CI runs one share, which the commit chooses."""

LONG_FIRST = ("exhaustive", "slow", "quick")


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def tier_of(item: pytest.Item) -> str:
    return next((marker for marker in ("exhaustive", "slow") if item.get_closest_marker(marker)), "quick")


def share_of(name: str, count: int) -> int:
    """The share that a test belongs to, from 1."""
    return zlib.crc32(name.encode()) % count + 1


class Tiers:
    """The order of tests, their budgets, and the last line."""

    def __init__(self, share: str = SHARE) -> None:
        self.share = share

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """The share of the exhaustive tests. Long tests first, so that no process ends with a long one while the others have
        nothing left."""
        number, count = map(int, self.share.split("/"))
        if count > 1:
            kept = [item for item in items if tier_of(item) != "exhaustive" or share_of(item.nodeid, count) == number]
            left = set(kept)
            config.hook.pytest_deselected(items=[item for item in items if item not in left])
            items[:] = kept
        if len(items) > 1000:  # tests chosen by path keep the order of their files
            items.sort(key=lambda item: LONG_FIRST.index(tier_of(item)))

    def pytest_collection_finish(self) -> None:
        """The garbage collector need not look at what was imported and collected, nor so often: a tenth of a tier's time."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        start = processor_seconds()
        yield
        tier, took = tier_of(item), processor_seconds() - start
        if took > BUDGETS.get(tier, took):
            pytest.fail(f"{took:.0f} s of processor time, and a {tier} test has {BUDGETS[tier]:.0f}: mark it for a later tier")

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        words = LEFT_OUT.get(config.option.markexpr)
        if words and not hasattr(config, "workerinput") and not config.option.collectonly:
            print(words, file=sys.stderr)
            if self.share != "1/1":
                print(f"left out: exhaustive tests of other shares than {self.share}", file=sys.stderr)
            if missing := missing_browser():
                print(f"left out: tests in a browser, {missing}", file=sys.stderr)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process for each processor where a whole tier runs, and this one alone for tests chosen by path or by `-k`."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword or processors == 1:
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes share the processors
    return processors


def pytest_configure(config: pytest.Config) -> None:
    """Imported by each `conftest.py`; registers the tiers once."""
    if not config.pluginmanager.has_plugin("tiers"):
        config.pluginmanager.register(Tiers(), "tiers")
        gc.disable()  # until the tests are collected
        if limited := os.environ.get("ATEN_CPU_CAPABILITY"):
            # torch keeps what it compiled, and does not ask for which instruction set: such a kernel may give NaN with another.
            kept = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}_{limited}")
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", kept)
