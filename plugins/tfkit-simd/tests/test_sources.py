"""Kernels of another revision are not called: they would read the memory of a step by another layout."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tfkit_simd
from tfkit_simd import sources
from tfkit_simd._processor import SOURCES

HERE = Path(tfkit_simd.__file__).parents[1] / "source"


def test_the_kernels_are_those_of_the_sources_beside_them() -> None:
    sources.check(SOURCES)
    assert sources.digest(HERE) == SOURCES


def test_a_changed_source_is_another_one(tmp_path: Path) -> None:
    shutil.copytree(HERE, tmp_path / "source")
    with (tmp_path / "source/steps.h").open("a", encoding="utf-8") as file:
        file.write("\n")
    with pytest.raises(ImportError, match="built from other sources than those in .*; build them again: pip install -e "):
        sources.check(sources.digest(tmp_path / "source"))
