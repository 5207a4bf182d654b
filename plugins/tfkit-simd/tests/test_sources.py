"""Kernels of another revision are not called: they would read the memory of a step by another layout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tfkit_simd import sources
from tfkit_simd._processor import SOURCES

HERE = Path(__file__).parents[1] / "source"


def test_a_changed_source_is_refused(tmp_path: Path) -> None:
    sources.check(SOURCES, HERE)
    sources.check("", tmp_path)  # a wheel
    changed = tmp_path / "source"
    shutil.copytree(HERE, changed)
    with (changed / "steps.h").open("a", encoding="utf-8") as file:
        file.write("\n")
    with pytest.raises(ImportError, match=r"built from other sources than those in .*; build them again: pip install -e "):
        sources.check(SOURCES, changed)
