"""The attention contract: what a backend is given and what it gives back.

    scores  = scale * q . k          (or a declared score function)
    scores  = softcap * tanh(scores / softcap)        where a softcap is set
    scores += bias                                    never scaled
    weights = softmax over the visible keys; a query that sees no key has zero weights
    output  = dropout(weights) @ value

Query head h reads key/value head h // (H // G). Axis letters: B batch, Q query length, K key length, H query heads,
G key/value heads, D query/key head dim, V value head dim. The rules A1-A12 are in the README.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees: the conjunction of every term that is set. **True means visible, everywhere.**

    Query i of batch row b stands at position `offset[b] + i`, key j at position j.

    causal           key j is visible where j <= position
    window           (left, right): position - left <= j <= position + right; None leaves a side open
    offset           int, or an integer tensor (B,); required whenever causal, window or a position bias is present
    key_lengths      (B,) integers: keys from key_lengths[b] on are hidden; out-of-range lengths mean the clamped length
    query_lengths    (B,) integers: queries from query_lengths[b] on see nothing
    key_visible      (B, K) bool
    query_segments   (B, Q) integers, with key_segments (B, K): visible where equal
    visible          bool, broadcastable to (B, H, Q, K)
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
        """The names of the terms that are set, as `Capabilities.mask_terms` spells them."""
        present = (
            ("causal", self.causal),
            ("window", self.window is not None),
            ("key_lengths", self.key_lengths is not None),
            ("query_lengths", self.query_lengths is not None),
            ("key_visible", self.key_visible is not None),
            ("segments", self.query_segments is not None or self.key_segments is not None),
            ("visible", self.visible is not None),
        )
        return frozenset(name for name, there in present if there)


@dataclass(frozen=True)
class DenseBias:
    """Added to the scores as it is: `values` broadcastable to (B, H, Q, K), finite, float32 or the query's dtype."""

    values: Float[Tensor, ...]


@dataclass(frozen=True)
class LinearBias:
    """-slopes[h] * |j - (offset + i)|, ALiBi (https://arxiv.org/abs/2108.12409). `slopes` (H,) float32."""

    slopes: Float32[Tensor, " H"]


@dataclass(frozen=True)
class DistanceBias:
    """values[h, clamp(j - (offset + i), low, low + R - 1) - low]: one value per head and distance. `values` (H, R), float32
    or the query's dtype. T5 and its kin; distances beyond either end take the end's value."""

    values: Float[Tensor, "H R"]
    low: int


Bias = DenseBias | LinearBias | DistanceBias
BIAS_NAMES: dict[type, str] = {DenseBias: "dense", LinearBias: "linear", DistanceBias: "distance"}


@dataclass(frozen=True)
class Prepared:
    """What a backend's `prepare` made of a mask, once for all layers of a stack. `with_bias` says that the bias is already
    in it; otherwise a backend takes `inputs.bias` as it comes."""

    payload: Any
    with_bias: bool = False


@dataclass(frozen=True)
class Shapes:
    """Sizes that `prepare` may need before there is a query."""

    batch: int
    heads: int
    queries: int
    keys: int
    dtype: Any
    device: Any


@dataclass(frozen=True)
class AttentionInputs:
    """Everything a backend may look at. `query` (B,H,Q,D), `key` (B,G,K,D), `value` (B,G,K,V), any strides, never written
    to. `dropout` is 0 outside training. `score` is None for the dot product. `return_weights` asks for the weights (B,H,Q,K)
    before dropout, `return_lse` for the log-sum-exp."""

    query: Float[Tensor, "B H Q D"]
    key: Float[Tensor, "B G K D"]
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
    """`output` (B,H,Q,V) in the query's dtype, no view of an input; `weights` (B,H,Q,K) or None; `lse` (B,H,Q) float32, the
    natural log of the sum of exp(scores) over visible keys, -inf where a query sees none, or None."""

    output: Float[Tensor, "B H Q V"]
    weights: Float[Tensor, "B H Q K"] | None = None
    lse: Float32[Tensor, "B H Q"] | None = None


for _type in (Mask, DenseBias, LinearBias, DistanceBias, Prepared, AttentionInputs, AttentionOutput):
    pytree.register_dataclass(_type)
