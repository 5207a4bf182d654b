"""Norm placement: how a layer connects its sub-layers, their norms and the residual.

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
"""Properties that a placement may claim in addition to its contract.

residual_stream    the layer adds to skip * x: if all branches are 0, the output is skip * x
normed_output      the output of the layer is the output of its last norm
"""


@dataclass(frozen=True)
class PlacementContext:
    """The role and depth of a stack, which the constants of a placement may depend on.

    Args:
        role: an encoder is the memory of another stack, a decoder reads a memory; a single stack is `decoder_only` if it is
            causal, else `encoder_only`.
        num_layers: number of layers.
        partner_layers: number of layers of the stack that it reads as memory, or that reads it; 0 if there is none.
    """

    role: Literal["encoder", "decoder", "encoder_only", "decoder_only"]
    num_layers: int
    partner_layers: int = 0


@dataclass(frozen=True)
class Constants:
    """The constants of the residual connections.

    Args:
        skip: factor of the residual.
        branch: factor of the output of a sub-layer.
        gains: factors of the initial spread of parameters, by role.
    """

    skip: float = 1.0
    branch: float = 1.0
    gains: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Placement(Entry):
    """A norm placement.

    Args:
        norm_sites: `norm_sites(options, sublayers)` names the norms of a layer with sub-layers of these names.
        final_norm: `final_norm(options)`: whether a stack of such layers ends in a norm.
        build: `"module:function"`, called as `build(options, parts)` with a `tfkit.nn.stack.LayerParts`. It returns an
            `nn.Module` with `forward(x (B,L,M), context, index) -> (B,L,M)`.
        constants: `constants(options, context)` gives the constants of the residual.
        unsupported: `unsupported(options, sublayers)` gives the reasons why it cannot connect these sub-layers.
        claims: `claims(options)` gives the `CLAIMS` that hold, if they differ from those that follow from `final_norm`;
            `tfkit conformance` checks them.
        same_as: the built-in placement with the same equation and options; `tfkit conformance` compares them.
        passes_padding: its layer applies norms by `normed(norm, x, context.padding)`, which norms over the batch need.
        formula: `"module:function"`, the plain equation that it is checked against, called as
            `formula(options, layer, x)`; `layer` has the functions `branches` and `norms` and the numbers `scales`, by name,
            and `stack`, a `PlacementContext`.
    """

    norm_sites: Callable[[Any, tuple[str, ...]], tuple[str, ...]]
    final_norm: Callable[[Any], bool]
    build: str
    constants: Callable[[Any, PlacementContext], Constants] = lambda options, context: Constants()
    unsupported: Callable[[Any, tuple[str, ...]], tuple[str, ...]] = lambda options, sublayers: ()
    claims: Callable[[Any], frozenset[str]] | None = None
    same_as: str = ""
    formula: str = ""
    passes_padding: bool = False

    def claimed(self, options: Any) -> frozenset[str]:
        """The claimed properties. By default a placement with a final norm claims `residual_stream`, any other
        `normed_output`.

        Args:
            options: the options of the placement.

        Returns:
            The `CLAIMS` that hold for these options.
        """
        if self.claims is not None:
            return self.claims(options)
        normless = not self.norm_sites(options, ("self_attention", "ffn"))
        return frozenset({"residual_stream" if normless or self.final_norm(options) else "normed_output"})
