"""Sub-layer kind: self-attention, cross-attention, feed-forward, and those of plugins (convolution, mixture of experts)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from .cost import Cost, Sizes
from .options import Component, Entry, Options
from .parameter import Parameter


class SublayerOptions(Options):
    """Base class of the options of every sub-layer kind.

    Args:
        name: name inside the layer; by default its kind, with `_2` for the second of a kind.
        residual_scale: factor of the output before it is added to the residual (0.5 for the halves of a macaron layer).
    """

    name: str = Field("", description="name inside the layer; its kind unless written")
    residual_scale: Annotated[float, Field(description="multiplies what the sub-layer adds to the residual")] = 1.0


@dataclass(frozen=True)
class SublayerContext:
    """The surroundings of a sub-layer.

    Args:
        width: width of the stack, d_model.
        memory_width: width of the memory it reads, or None.
        causal: the stack is causal.
        position: the position scheme of its layer.
        padded: its memory, or else the sequence itself, may be padded.
    """

    width: int
    memory_width: int | None
    causal: bool
    position: Component
    padded: bool = True


@dataclass(frozen=True)
class AttentionSite:
    """One place in a model where attention happens, as far as the spec fixes it.

    Args:
        heads: query heads H.
        kv_heads: key/value heads G.
        head_dim: features per head D.
        cross: keys and values come from a memory.
        mask_terms: terms that a mask may have there, from `tfkit.attention.capabilities.MASK_TERMS`.
        backend: requested backends.
        bias: kind of the position bias, or None.
        bias_gradient: the bias has trainable parameters.
        dropout: dropout probability of the weights.
        softcap: c in c * tanh(score / c), or None.
        score: name of the score function.
    """

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
    """A kind of sub-layer, as a plugin registers it.

    A sub-layer with its own `MultiHeadAttention` names it `wiring.name` and describes it by `site`. It then gets backends,
    caches and attention weights like the built-in ones.

    Args:
        option_keys: keys of the spec that hold its options, general to specific: `("attention", "self_attention")`.
        reads: what it reads besides the token itself: the sequence (`self`), a `memory`, or `none`.
        parameters: `parameters(options, context)` lists its weights.
        build: `"module:function"`, called as `build(options, context, wiring)` with a `Wiring`; returns an `nn.Module` with
            `forward(x (B, L, M), context, index) -> (B, L, M)`.
        costs: `costs(options, context, sizes)` lists its costs.
        site: `site(options, context)` describes its attention; None if it has none.
        unsupported: `unsupported(options, context)` returns (option, rule, fix) for everything that cannot be built.
    """

    option_keys: tuple[str, ...]
    reads: Literal["self", "memory", "none"]
    parameters: Callable[[Any, SublayerContext], tuple[Parameter, ...]]
    build: str
    costs: Callable[[Any, SublayerContext, Sizes], tuple[Cost, ...]] = lambda options, context, sizes: ()
    site: Callable[[Any, SublayerContext], AttentionSite | None] = lambda options, context: None
    unsupported: Callable[[Any, SublayerContext], tuple[tuple[str, str, str], ...]] = lambda options, context: ()
