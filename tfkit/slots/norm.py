"""Norm: a map of the last axis, (..., M) -> (..., M), that fixes its scale. Where it stands is the placement's business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .options import Entry
from .parameter import Parameter


@dataclass(frozen=True, kw_only=True)
class Norm(Entry):
    """`parameters(options, width)` lists its weights; `build`, a `"module:function"`, is called as
    `build(options, width)` and gives an `nn.Module` from (..., width) to (..., width) with exactly these weights."""

    parameters: Callable[[Any, int], tuple[Parameter, ...]]
    build: str
