"""Norm: a map of the last axis, (..., M) -> (..., M), that fixes its scale. The placement decides where it is applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .options import Entry
from .parameter import Parameter

CLAIMS = frozenset({"scale_invariant", "shift_invariant", "zero_mean", "unit_rms", "identity", "rounds_once"})
"""Properties that a norm may claim.

scale_invariant    a x has the norm of x, for a > 0, as far as eps allows
shift_invariant    x + c has the norm of x
zero_mean          the mean of each output vector is 0, with weights as they are at first
unit_rms           its root mean square is 1, as far as eps allows, with weights as they are at first
identity           y = x
rounds_once        half dtypes are computed in float32 and rounded once, at the end
"""


@dataclass(frozen=True, kw_only=True)
class Norm(Entry):
    """A norm, as a plugin registers it.

    Args:
        parameters: `parameters(options, width)` lists its weights.
        build: `"module:function"`, called as `build(options, width)`; returns an `nn.Module` (..., width) -> (..., width) with
            exactly these weights.
        claims: `claims(options)` returns the `CLAIMS` that hold; `tfkit conformance` checks them.
        same_as: the built-in norm with the same equation and options; `tfkit conformance` compares both.
    """

    parameters: Callable[[Any, int], tuple[Parameter, ...]]
    build: str
    claims: Callable[[Any], frozenset[str]] = lambda options: frozenset({"scale_invariant"})
    same_as: str = ""

    def claimed(self, options: Any) -> frozenset[str]:
        """The `CLAIMS` that hold for these options."""
        return self.claims(options)
