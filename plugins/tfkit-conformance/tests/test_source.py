"""The numbers and the lines of a kernel are read off its source: nested functions, closures, defaults, constants, C files."""

from __future__ import annotations

import functools
import importlib
import math
import sys

import pytest

from tfkit_conformance.source import read_source

KERNEL = '''
"""A kernel with the number 999 in words only."""
import math
from .tiles import BLOCK, blocks as split
from . import scores

LIMIT = 3 * 128 + 7
RATES = (0.375, 41)

class Pass:
    @staticmethod
    def forward(size):
        return size >= LIMIT

def attend(inputs, options=None, chunk=57, *, warps=11):
    """Not 998."""
    rows = lambda size: size % 23
    if inputs > 1 << 14:
        return scores.soft(inputs)
    if inputs < -30.5:
        return split(inputs, RATES)
    return Pass.forward(inputs) or rows(inputs)
'''
TILES = """
BLOCK = 96

def blocks(size, rates):
    return size // BLOCK if size > rates[1] else [size for part in range(5)]
"""
SCORES = """
def soft(score):
    if score == 77:
        raise ValueError("77")
    return score * 2.25
"""
NATIVE = """
#define TILE 208
constexpr float FLOOR = 0.0625;
int tail(int n) { return n % 48 ? n >> 9 : n; }  // 12345
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    package = tmp_path / "acme_kernel"
    package.mkdir()
    (package / "__init__.py").write_text("from .kernel import attend\n")
    files = {"kernel.py": KERNEL, "tiles.py": TILES, "scores.py": SCORES, "tail.cu": NATIVE}
    for name, text in files.items():
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("acme_kernel")
    for name in [name for name in sys.modules if name.startswith("acme_kernel")]:
        del sys.modules[name]


def test_numbers_of_what_a_kernel_reaches_are_read(kernel):
    source = read_source(kernel.attend)
    assert {391, 1 << 14, 57, 11, 23, 96, 77, 41, 208, 48, 9} <= {*source.integers}
    assert {30.5, 0.375, 2.25, 0.0625} <= {*source.floats}
    assert not {998, 999, 12345} & {*source.integers}
    deciding = source.integers[: source.integers.index(57)]
    assert {391, 1 << 14, 23, 96, 77} <= {*deciding}
    assert sorted(name.rpartition("/")[2] for name in source.files) == ["kernel.py", "scores.py", "tail.cu", "tiles.py"]


def test_lines_that_never_ran_are_named(kernel):
    source = read_source(kernel.attend)
    with source.traced():
        kernel.attend(3)
    assert source.not_reached() == ["kernel.py:19", "kernel.py:21", "scores.py:3", "scores.py:5", "tiles.py:5"]
    with source.traced():
        kernel.attend(1 << 15)
        kernel.attend(-31)
    assert source.not_reached() == []  # what raises is not missed
    assert source.evidence().startswith(f"{len(source.integers)} numbers in kernel.py, scores.py, tail.cu, tiles.py; ")
    assert "lines ran" in source.evidence()


def test_closures_partials_and_wrappers_are_looked_through(kernel):
    threshold = 613

    def make(block):
        @functools.lru_cache
        def inner(size):
            return size > block + threshold

        return inner

    source = read_source(functools.partial(make(219), 5))
    assert {613, 219} <= {*source.integers}


def test_a_compiled_function_has_no_source():
    source = read_source(math.sqrt)
    assert (source.integers, source.floats, source.not_reached()) == ([], [], [])
    assert source.evidence() == "the source cannot be read: sizes are drawn without it"


def test_another_tracer_is_left_alone(kernel):
    source = read_source(kernel.attend)

    def other(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(other)
    try:
        with source.traced():
            assert sys.gettrace() is other
    finally:
        sys.settrace(before)
    assert source.not_reached() == []
