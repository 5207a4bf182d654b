"""Norm: normalises the last axis, (..., M) -> (..., M). The placement decides where norms are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .options import Entry
from .parameter import Parameter

CLAIMS = frozenset({"scale_invariant", "shift_invariant", "zero_mean", "unit_rms", "identity", "rounds_once"})
"""Properties that a norm may claim in addition to its contract.

scale_invariant    norm(a x) = norm(x) for a > 0, up to eps
shift_invariant    norm(x + c) = norm(x)
zero_mean          with initial weights, the mean of each output vector is 0
unit_rms           with initial weights, the root mean square of each output vector is 1, up to eps
identity           y = x
rounds_once        half dtypes are computed in float32 and rounded once, at the end
"""


@dataclass(frozen=True, kw_only=True)
class Norm(Entry):
    """A norm.

    Args:
        parameters: `parameters(options, width)` lists its weights.
        build: `"module:function"`, called as `build(options, width)`. It returns an `nn.Module` from (..., width) to
            (..., width) with exactly these weights.
        claims: `claims(options)` gives the `CLAIMS` that hold; `tfkit conformance` checks them.
        same_as: the built-in norm with the same equation and options; `tfkit conformance` compares them.
        formula: `"module:function"`, the plain equation that it is checked against, called as
            `formula(options, weights, x)`.
        over_batch: in training its statistics are over the batch, so that rows depend on each other. Its module is a
            `tfkit.plugin.model_parts.BatchwiseNorm`. In evaluation each token is normalised alone.
    """

    parameters: Callable[[Any, int], tuple[Parameter, ...]]
    build: str
    claims: Callable[[Any], frozenset[str]] = lambda options: frozenset({"scale_invariant"})
    same_as: str = ""
    formula: str = ""
    over_batch: bool = False

    def claimed(self, options: Any) -> frozenset[str]:
        """The claimed properties.

        Args:
            options: the options of the norm.

        Returns:
            The `CLAIMS` that hold for these options.
        """
        return self.claims(options)
