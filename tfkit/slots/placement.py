"""Norm placement: how a layer wires its sub-layers, their norms and the residual.

    post    x = norm(x + f(x))              Vaswani et al. 2017
    pre     x = x + f(norm(x))              a stack of these needs a final norm
A placement builds a WHOLE layer, so that parallel sub-layers are a placement like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .options import Entry

CLAIMS = frozenset({"residual_stream", "normed_output"})
"""What a placement may promise besides its contract.

residual_stream    x itself runs through the layer, times `skip` at most: where the branches give 0, so does what is added
normed_output      what leaves the layer is what its last norm gave
"""


@dataclass(frozen=True)
class StackFacts:
    """What constants may depend on: the layers of this stack, those of the stack it reads or feeds as memory (0 if none),
    and its part in the model."""

    role: Literal["encoder", "decoder", "encoder_only", "decoder_only"]
    num_layers: int
    partner_layers: int = 0


@dataclass(frozen=True)
class Constants:
    """`skip` multiplies the residual, `branch` what a sub-layer adds to it; `gains` multiplies the initial spread of
    parameters by role."""

    skip: float = 1.0
    branch: float = 1.0
    gains: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Placement(Entry):
    """`norm_sites(options, sublayers)` names the norms of a layer whose sub-layers have these names, `final_norm(options)`
    says whether a stack of such layers ends in a norm, `constants(options, context)` gives the residual's constants,
    `unsupported(options, sublayers)` the reasons why it cannot wire them. `build`, a `"module:function"`, is called as
    `build(options, parts)` with a `tfkit.nn.layer.LayerParts` and gives an `nn.Module` with
    `forward(x (B,L,M), context, index) -> (B,L,M)`. `claims(options)` names the `CLAIMS` that it keeps, where they differ from
    those that follow from `final_norm`; `same_as` names the built-in placement whose equation and options it shares:
    `tfkit conformance` holds it to both."""

    norm_sites: Callable[[Any, tuple[str, ...]], tuple[str, ...]]
    final_norm: Callable[[Any], bool]
    build: str
    constants: Callable[[Any, StackFacts], Constants] = lambda options, context: Constants()
    unsupported: Callable[[Any, tuple[str, ...]], tuple[str, ...]] = lambda options, sublayers: ()
    claims: Callable[[Any], frozenset[str]] | None = None
    same_as: str = ""

    def claimed(self, options: Any) -> frozenset[str]:
        """The `CLAIMS` that hold for these options. A stack of layers ends in a norm because their stream has none."""
        if self.claims is not None:
            return self.claims(options)
        normless = not self.norm_sites(options, ("self_attention", "ffn"))
        return frozenset({"residual_stream" if normless or self.final_norm(options) else "normed_output"})
