"""Sub-layer kind: what stands between two norms of a layer (self-attention, cross-attention, feed-forward, and whatever a
plugin adds: convolution, mixture of experts)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from .cost import Cost, Sizes
from .options import Component, Entry, Options
from .parameter import Parameter


class SublayerOptions(Options):
    """Base of the options of every sub-layer kind. `name` is its name inside the layer (its kind unless written; the second
    of a kind gets `_2`), `residual_scale` multiplies what it adds to the residual (0.5 for the halves of a macaron)."""

    name: str = Field("", description="name inside the layer; its kind unless written")
    residual_scale: Annotated[float, Field(description="multiplies what the sub-layer adds to the residual")] = 1.0


@dataclass(frozen=True)
class SublayerContext:
    """What surrounds a sub-layer: the width of the stack, that of the memory it reads (None if none), whether the stack is
    causal, the position scheme of its layer, and whether what it reads may be padded: its memory, or the sequence itself."""

    width: int
    memory_width: int | None
    causal: bool
    position: Component
    padded: bool = True


@dataclass(frozen=True)
class AttentionSite:
    """One place where attention happens, as far as the spec fixes it. `mask_terms` are those that may occur there."""

    heads: int
    kv_heads: int
    head_dim: int
    cross: bool
    mask_terms: frozenset[str]
    backend: tuple[Component, ...]
    bias: str | None = None
    bias_gradient: bool = False
    dropout: float = 0.0
    softcap: float | None = None
    score: str = "dot"


@dataclass(frozen=True, kw_only=True)
class SublayerKind(Entry):
    """A kind of sub-layer.

    `option_keys` are the keys under which a spec writes its options, general to specific (`("attention", "self_attention")`).
    `reads` is what it looks at beside the token itself. `parameters(options, context)`, `costs(options, context, sizes)` and
    `site(options, context)` (None: no attention) describe it. `unsupported(options, context)` returns (option, reason, fix) for
    what cannot be built. `build`, a `"module:function"`, is called as `build(options, context, wiring)` with a
    `tfkit.plugin.model_parts.Wiring`. It returns an `nn.Module` with `forward(x (B,L,M), context, index) -> (B,L,M)`."""

    option_keys: tuple[str, ...]
    reads: Literal["self", "memory", "none"]
    parameters: Callable[[Any, SublayerContext], tuple[Parameter, ...]]
    build: str
    costs: Callable[[Any, SublayerContext, Sizes], tuple[Cost, ...]] = lambda options, context, sizes: ()
    site: Callable[[Any, SublayerContext], AttentionSite | None] = lambda options, context: None
    unsupported: Callable[[Any, SublayerContext], tuple[tuple[str, str, str], ...]] = lambda options, context: ()
