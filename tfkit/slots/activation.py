"""Activation: the non-linear function of a feed-forward layer, elementwise.

A plain FFN is `out(f(in(x)))`; a gated one, Shazeer 2020 (https://arxiv.org/abs/2002.05202), is `out(f(gate(x)) * in(x))`.
An entry is only `f`; `gated` selects the form of the FFN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .options import Entry

CLAIMS = frozenset({"closes", "monotone", "rounds_once"})
"""Properties that an activation may claim in addition to its contract.

closes         f(x) tends to 0 as x tends to minus infinity, so that a gate can close
monotone       f never decreases
rounds_once    half dtypes are computed in float32 and rounded once, at the end
"""


@dataclass(frozen=True, kw_only=True)
class Activation(Entry):
    """An activation function. A name is its mathematics: exact and tanh GELU have different names.

    Args:
        function: `"module:function"`, called as `function(x, options)`; the result has the shape of x.
        gated: whether the FFN has a gate.
        kept: tensors of the size of x that its backward pass needs, without its result.
        claims: `claims(options)` gives the `CLAIMS` that hold; `tfkit conformance` checks them.
        same_as: the built-in activation with the same function; `tfkit conformance` compares them.
        formula: `"module:function"`, the plain equation that it is checked against, called as
            `formula(options, x)`.
    """

    function: str
    gated: bool = False
    kept: int = 1
    claims: Callable[[Any], frozenset[str]] = lambda options: frozenset()
    same_as: str = ""
    formula: str = ""

    def claimed(self, options: Any) -> frozenset[str]:
        """The claimed properties.

        Args:
            options: the options of the activation.

        Returns:
            The `CLAIMS` that hold for these options.
        """
        return self.claims(options)
