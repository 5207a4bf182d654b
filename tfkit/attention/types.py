"""The attention contract: the inputs and the output of a backend.

    scores  = scale * q . k          (or a declared score function)
    scores  = softcap * tanh(scores / softcap)        where a softcap is set
    scores += bias                                    never scaled
    weights = softmax over the visible keys; a query that sees no key has zero weights
    output  = dropout(weights) @ value

Query head h reads key/value head h // (H // G). Axis letters: B batch, Q query length, K key length, H query heads,
G key/value heads, D query/key head dim, V value head dim. The rules A1-A12 are in `rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from typing import Any

from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor
from torch.utils import _pytree as pytree

from .capabilities import MASK_TERMS


@dataclass(frozen=True)
class Mask:
    """The keys that a query sees: those that every given term allows. **True means visible, everywhere.**

    The position of query i of batch row b is `offset[b] + i`, that of key j is j.

    Args:
        causal: key j is visible where j <= position.
        window: (left, right), each from 0 up: position - left <= j <= position + right; None leaves a side open.
        offset: int, or an integer tensor (B,); required whenever causal, window or a position bias is present.
        key_lengths: (B,) integers: keys from key_lengths[b] on are hidden; out-of-range lengths are clamped.
        query_lengths: (B,) integers: queries from query_lengths[b] on see no key.
        key_visible: (B, K) bool.
        query_segments: (B, Q) integers, with `key_segments`: keys of an equal segment are visible.
        key_segments: (B, K) integers.
        visible: bool, broadcastable to (B, H, Q, K).
    """

    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    offset: int | Int[Tensor, " B"] | None = None
    key_lengths: Int[Tensor, " B"] | None = None
    query_lengths: Int[Tensor, " B"] | None = None
    key_visible: Bool[Tensor, "B K"] | None = None
    query_segments: Int[Tensor, "B Q"] | None = None
    key_segments: Int[Tensor, "B K"] | None = None
    visible: Bool[Tensor, ...] | None = None

    def terms(self) -> frozenset[str]:
        """The terms that are set.

        Returns:
            Their names, as `Capabilities.mask_terms` spells them.
        """
        return frozenset(compress(MASK_TERMS, self.present_terms()))

    def present_terms(self) -> tuple[bool, ...]:
        """Whether each term is set.

        Returns:
            One bool for each of `MASK_TERMS`, in their order.
        """
        return (
            self.causal,
            self.window is not None,
            self.key_lengths is not None,
            self.query_lengths is not None,
            self.key_visible is not None,
            self.query_segments is not None or self.key_segments is not None,
            self.visible is not None,
        )


@dataclass(frozen=True)
class DenseBias:
    """A bias with one value per score.

    Args:
        values: added to the scores; broadcastable to (B, H, Q, K), finite, float32 or the query's dtype.
    """

    values: Float[Tensor, ...]


@dataclass(frozen=True)
class LinearBias:
    """A bias linear in the distance, -slopes[h] * |j - (offset + i)|.

    Args:
        slopes: (H,) float32.

    Reference: ALiBi, https://arxiv.org/abs/2108.12409
    """

    slopes: Float32[Tensor, " H"]


@dataclass(frozen=True)
class DistanceBias:
    """A bias with one value per head and distance, values[h, clamp(j - (offset + i), low, low + R - 1) - low].

    Args:
        values: (H, R), float32 or the query's dtype. Distances beyond either end have the value of that end.
        low: the distance of the first value.

    Reference: T5, https://arxiv.org/abs/1910.10683, section 2.1
    """

    values: Float[Tensor, "H R"]
    low: int


Bias = DenseBias | LinearBias | DistanceBias
BIAS_NAMES: dict[type, str] = {DenseBias: "dense", LinearBias: "linear", DistanceBias: "distance"}


@dataclass(frozen=True)
class Prepared:
    """A mask as a backend's `prepare` rendered it, once for all layers of a stack.

    Args:
        payload: whatever the backend's `attend` needs.
        with_bias: the payload contains the bias; otherwise the backend adds `inputs.bias`.
    """

    payload: Any
    with_bias: bool = False


@dataclass(frozen=True)
class Shapes:
    """The sizes of a call, for `prepare`, which gets no query.

    Args:
        batch: rows B.
        heads: query heads H.
        queries: number of queries Q.
        keys: number of keys K.
        dtype: dtype of the query.
        device: device of the query.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    dtype: Any
    device: Any


@dataclass(frozen=True)
class AttentionInputs:
    """The inputs of a backend, which it never writes to.

    Args:
        query: (B, H, Q, D), any strides.
        key: (B, G, K, E), any strides; E = D, unless a score function maps keys to other features.
        value: (B, G, K, V), any strides.
        mask: which keys each query sees.
        scale: factor of q.k.
        bias: added to the scores, or None.
        softcap: c in c * tanh(score / c), or None.
        dropout: probability that an attention weight is dropped; 0 outside of training.
        score: score function (query, key) -> (B, H, Q, K) of keys with any number of features; None for the dot product.
        return_weights: also return the weights (B, H, Q, K) before dropout.
        return_lse: also return the log-sum-exp (B, H, Q).
        prepared: the result of the backend's `prepare`, if it has one.
    """

    query: Float[Tensor, "B H Q D"]
    key: Float[Tensor, "B G K E"]
    value: Float[Tensor, "B G K V"]
    mask: Mask
    scale: float
    bias: Bias | None = None
    softcap: float | None = None
    dropout: float = 0.0
    score: Callable[[Tensor, Tensor], Tensor] | None = None
    return_weights: bool = False
    return_lse: bool = False
    prepared: Prepared | None = None


@dataclass(frozen=True)
class AttentionOutput:
    """The output of a backend.

    Args:
        output: (B, H, Q, V) in the query's dtype, not a view of an input.
        weights: (B, H, Q, K) after softmax and before dropout, or None.
        lse: (B, H, Q) float32, the natural logarithm of the sum of exp(scores) over visible keys, -inf for a fully masked row;
            or None.
    """

    output: Float[Tensor, "B H Q V"]
    weights: Float[Tensor, "B H Q K"] | None = None
    lse: Float32[Tensor, "B H Q"] | None = None


for _type in (Mask, DenseBias, LinearBias, DistanceBias, Prepared, AttentionInputs, AttentionOutput):
    pytree.register_dataclass(_type)
