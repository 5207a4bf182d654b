"""Norm: a map of the last axis, (..., M) -> (..., M), that fixes its scale. Where it stands is the placement's business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .options import Entry
from .parameter import Parameter

CLAIMS = frozenset({"scale_invariant", "shift_invariant", "zero_mean", "unit_rms", "identity", "rounds_once"})
"""What a norm may promise besides its contract.

scale_invariant    a x has the norm of x, for a > 0, as far as eps allows
shift_invariant    x + c has the norm of x
zero_mean          the mean of each output vector is 0, with weights as they are at first
unit_rms           its root mean square is 1, as far as eps allows, with weights as they are at first
identity           y = x
rounds_once        half dtypes are computed in float32 and rounded once, at the end
"""


@dataclass(frozen=True, kw_only=True)
class Norm(Entry):
    """`parameters(options, width)` lists its weights; `build`, a `"module:function"`, is called as
    `build(options, width)` and gives an `nn.Module` from (..., width) to (..., width) with exactly these weights.
    `claims(options)` names the `CLAIMS` that it keeps, and `same_as` the built-in norm whose equation and options it shares:
    `tfkit conformance` holds it to both."""

    parameters: Callable[[Any, int], tuple[Parameter, ...]]
    build: str
    claims: Callable[[Any], frozenset[str]] = lambda options: frozenset({"scale_invariant"})
    same_as: str = ""

    def claimed(self, options: Any) -> frozenset[str]:
        """The `CLAIMS` that hold for these options."""
        return self.claims(options)
