"""Sub-layer kind: self-attention, cross-attention, feed-forward, and those of plugins (convolution, mixture of experts)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from .cost import Cost, KeptBySublayer, Sizes
from .options import Component, Entry, Options
from .parameter import Parameter


class SublayerOptions(Options):
    """Base of the options of every sub-layer kind.

    Args:
        name: name inside the layer, by default the kind; the second sub-layer of a kind gets `_2`.
        residual_scale: factor of the output before the residual (0.5 for the two FFNs of Macaron-Net).
    """

    name: str = Field("", description="name inside the layer; its kind unless written")
    residual_scale: Annotated[float, Field(description="multiplies what the sub-layer adds to the residual")] = 1.0


@dataclass(frozen=True)
class SublayerContext:
    """The context of a sub-layer.

    Args:
        width: d_model of the stack.
        memory_width: width of the memory that it reads; None if it reads none.
        causal: whether the stack is causal.
        position: the position scheme of its layer.
        padded: whether the keys, of the memory or of the sequence itself, may be padded.
    """

    width: int
    memory_width: int | None
    causal: bool
    position: Component
    padded: bool = True


@dataclass(frozen=True, kw_only=True)
class AttentionSettings:
    """The numbers of attention that a spec sets and a call carries unchanged, under one name in both.

    Args:
        softcap: c in c * tanh(score / c), or None.
        dropout: probability that an attention weight is dropped in training.
    """

    softcap: float | None = None
    dropout: float = 0.0


DEFAULT_SETTINGS = {field.name: field.default for field in fields(AttentionSettings)}


def settings_of(source: Any) -> dict[str, Any]:
    """The fields of `AttentionSettings`, by name, read from the options of a sub-layer, a site or a configuration."""
    return {name: getattr(source, name) for name in DEFAULT_SETTINGS}


def changed_settings(source: Any) -> dict[str, Any]:
    """Those of `settings_of` that are not at their defaults."""
    return {name: value for name, value in settings_of(source).items() if value != DEFAULT_SETTINGS[name]}


@dataclass(frozen=True)
class AttentionSite(AttentionSettings):
    """One place in a model where attention happens, as described by the spec.

    Args:
        heads: query heads H.
        kv_heads: key/value heads G.
        head_dim: features per head D.
        cross: keys and values come from a memory.
        mask_terms: terms that the mask may have, from `MASK_TERMS`.
        backend: the requested backends.
        bias: kind of bias, from `BIAS_KINDS`; None for no bias.
        bias_gradient: the bias has trainable parameters.
        score: name of the score function that the backend computes.
        value_dim: features per value head V; head_dim unless given.
    """

    heads: int
    kv_heads: int
    head_dim: int
    cross: bool
    mask_terms: frozenset[str]
    backend: tuple[Component, ...]
    bias: str | None = None
    bias_gradient: bool = False
    score: str = "dot"
    value_dim: int | None = None


@dataclass(frozen=True, kw_only=True)
class SublayerKind(Entry):
    """A sub-layer kind.

    Args:
        option_keys: the keys of its options in a spec, general to specific: `("attention", "self_attention")`.
        reads: what it reads in addition to the token: other tokens (`self`), the memory, or nothing.
        parameters: `parameters(options, context)` lists its weights.
        build: `"module:function"`, called as `build(options, context, wiring)` with a `tfkit.plugin.model_parts.Wiring`. It
            returns an `nn.Module` with `forward(x (B,L,M), context, index) -> (B,L,M)`.
        costs: `costs(options, context, sizes)` gives the terms of its cost.
        kept: `kept(options, context, sizes, numbers)` gives the bytes that training keeps for its backward pass, for
            `tfkit plan --gpus`; None: estimated by the elements of its costs.
        undivided: `undivided(options, context, ranks)` says why its weights cannot be divided among ranks by columns and rows,
            by the roles `query`, `ffn_in`, ...; empty if they can. None: they are never divided.
        site: `site(options, context)` is its attention site; None: no attention.
        unsupported: `unsupported(options, context)` gives (option, reason, fix) for each option that cannot be built.
        formula: `"module:function"`, the plain equation that it is checked against, called as
            `formula(options, weights, x, call)`; `call` has `causal`, `visible` (B,L) bool, `position`, and `memory` with
            `tensor` and `shown()`, or None.
    """

    option_keys: tuple[str, ...]
    reads: Literal["self", "memory", "none"]
    parameters: Callable[[Any, SublayerContext], tuple[Parameter, ...]]
    build: str
    costs: Callable[[Any, SublayerContext, Sizes], tuple[Cost, ...]] = lambda options, context, sizes: ()
    kept: KeptBySublayer | None = None
    undivided: Callable[[Any, SublayerContext, int], str] | None = None
    site: Callable[[Any, SublayerContext], AttentionSite | None] = lambda options, context: None
    unsupported: Callable[[Any, SublayerContext], tuple[tuple[str, str, str], ...]] = lambda options, context: ()
    formula: str = ""
