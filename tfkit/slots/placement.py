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
"""Properties that a placement may claim.

residual_stream    x itself runs through the layer, times `skip` at most: where the branches give 0, so does what is added
normed_output      what leaves the layer is what its last norm gave
"""


@dataclass(frozen=True)
class StackFacts:
    """What the constants of a placement may depend on.

    Args:
        role: role of the stack in the model.
        num_layers: layers of the stack.
        partner_layers: layers of the stack that it reads or that reads it as memory, 0 if there is none.
    """

    role: Literal["encoder", "decoder", "encoder_only", "decoder_only"]
    num_layers: int
    partner_layers: int = 0


@dataclass(frozen=True)
class Constants:
    """Constants of a layer.

    Args:
        skip: factor of the residual.
        branch: factor of every sub-layer's output.
        gains: by role, factor of the initial spread of parameters.
    """

    skip: float = 1.0
    branch: float = 1.0
    gains: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Placement(Entry):
    """A norm placement, as a plugin registers it.

    Args:
        norm_sites: `norm_sites(options, sublayers)` names the norms of a layer with sub-layers of these names.
        final_norm: `final_norm(options)` is True if a stack of such layers ends in a norm.
        build: `"module:function"`, called as `build(options, parts)` with a `LayerParts`; returns an `nn.Module` with
            `forward(x (B, L, M), context, index) -> (B, L, M)`.
        constants: `constants(options, context)` returns the constants of a layer.
        unsupported: `unsupported(options, sublayers)` returns reasons why it cannot build such a layer.
        claims: `claims(options)` returns the `CLAIMS` that hold, if they do not follow from `final_norm`; `tfkit conformance`
            checks them.
        same_as: the built-in placement with the same equation and options; `tfkit conformance` compares both.
    """

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
