"""Activation: the non-linear function of a feed-forward layer, elementwise.

A plain FFN is `out(f(in(x)))`; a gated one, Shazeer 2020 (https://arxiv.org/abs/2002.05202), is `out(f(gate(x)) * in(x))`.
An entry is only `f`; `gated` says which of the two the FFN must be.
"""

from __future__ import annotations

from dataclasses import dataclass

from .options import Entry


@dataclass(frozen=True, kw_only=True)
class Activation(Entry):
    """`function`, a `"module:function"`, is called as `function(x, options)` and keeps the shape. A name is its
    mathematics: exact and tanh GELU are two names."""

    function: str
    gated: bool = False
