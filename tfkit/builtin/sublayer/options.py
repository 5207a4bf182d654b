"""The options of `attention`, `self_attention`, `cross_attention` and `ffn` in a spec."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from ...plugin import Component, OneOf, Options, Positive, Probability, Size, SlotField, SublayerOptions, component_default
from ...slots.options import NodeRef, SlotListField

PROJECTIONS = ("query", "key", "value", "output")
SHARED_MATRICES: dict[str, dict[str, str]] = {
    "none": {},
    "key_value": {"value": "key"},
    "query_key_value": {"key": "query", "value": "query"},
}
"""By `shared_projection`: the tensors that have no matrix of their own, and the name of the one that projects them."""


class ProjectionBias(Options):
    """Which of the four projections have a bias."""

    query: bool = True
    key: bool = True
    value: bool = True
    output: bool = True

    def written(self) -> Any:
        flags = self.model_dump()
        return flags["query"] if len(set(flags.values())) == 1 else {name: flag for name, flag in flags.items() if not flag}


def _bias(value: Any) -> ProjectionBias:
    if isinstance(value, ProjectionBias):
        return value
    if isinstance(value, bool):
        return ProjectionBias(query=value, key=value, value=value, output=value)
    if isinstance(value, dict):
        return ProjectionBias.model_validate(value)
    raise PydanticCustomError("bias", "true, false, or a mapping such as {{key: false}} is expected")


def _window(value: Any) -> Any:
    """Checks a window: an integer n from 1, or [left, right], which becomes a tuple; null leaves a side unlimited."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, (list, tuple)) and len(value) == 2:
        sides = tuple(value)
        if all(side is None or (isinstance(side, int) and not isinstance(side, bool) and side >= 0) for side in sides):
            return sides
    raise PydanticCustomError("window", "a number of keys from 1, or [left, right] with numbers from 0 or null, is expected")


_BIAS_SCHEMA = {
    "anyOf": [
        {"type": "boolean"},
        {"type": "object", "properties": {name: {"type": "boolean"} for name in PROJECTIONS}, "additionalProperties": False},
    ]
}
_SIDE = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}
_WINDOW_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "array", "items": _SIDE, "minItems": 2, "maxItems": 2}]}

Bias = Annotated[ProjectionBias, PlainValidator(_bias), PlainSerializer(ProjectionBias.written), WithJsonSchema(_BIAS_SCHEMA)]
Window = Annotated[
    Any,
    PlainValidator(_window),
    PlainSerializer(lambda w: list(w) if isinstance(w, tuple) else w),
    WithJsonSchema(_WINDOW_SCHEMA),
]


class SelfAttentionOptions(SublayerOptions):
    """Attention of a sequence to itself."""

    num_heads: Annotated[Size, Field(description="query heads H")]
    head_dim: Annotated[Size | None, Field(description="features per head D; d_model / num_heads unless written")] = None
    value_dim: Annotated[Size | None, Field(description="features of a value head V; head_dim unless written")] = None
    num_kv_heads: Annotated[Size | None, Field(description="key/value heads G; num_heads unless written")] = None
    bias: Annotated[Bias, Field(description="whether the projections have a bias: all, or {key: false}")] = ProjectionBias()
    dropout: Annotated[Probability, Field(description="dropout of the attention weights")] = 0.0
    scale: Annotated[float | str, OneOf("inverse_sqrt_head_dim", number=True), Field(description="factor of q.k")] = (
        "inverse_sqrt_head_dim"
    )
    softcap: Annotated[Positive | None, Field(description="c in c * tanh(score / c)")] = None
    window: Annotated[Window | None, Field(description="n: the query and the n-1 keys before it; or [left, right]")] = None
    sink: Annotated[bool, Field(description="whether a learned logit per head joins the softmax (gpt-oss)")] = False
    shared_projection: Annotated[
        str, OneOf(*SHARED_MATRICES), Field(description="what one matrix projects: keys and values, or queries too")
    ] = "none"
    output_projection: Annotated[
        bool, Field(description="whether a matrix projects the heads; without one, H * V must be d_model")
    ] = True
    output_gate: Annotated[
        str,
        OneOf("none", "elementwise", "headwise"),
        Field(description="sigmoid of a projection of the input that multiplies each feature of a head's output, or each head"),
    ] = "none"
    value_residual: Annotated[
        str,
        OneOf("none", "mean", "learned"),
        Field(description="mixes the values with those of the stack's first layer: their mean, or two learned factors"),
    ] = "none"
    score: Annotated[Component, SlotField("score"), Field(description="score function")] = component_default("dot")
    query_key_norm: Annotated[Component, SlotField("norm"), Field(description="norm of each query and key head")] = (
        component_default("none")
    )
    query_key_norm_over: Annotated[
        str, OneOf("each_head", "all_heads"), Field(description="what the norm of queries and keys is over")
    ] = "each_head"
    backend: Annotated[Any, SlotListField("backend"), Field(description="attention backend, or several to fall back on")] = (
        component_default("auto")
    )

    def dim(self, width: int) -> int:
        """Features per head in a stack of this width."""
        return self.head_dim or width // self.num_heads

    def values(self, width: int) -> int:
        """Features per value head in a stack of this width."""
        return self.value_dim or self.dim(width)

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def norm_widths(self, width: int) -> tuple[int, int]:
        """Features that the norms of queries and of keys are over."""
        dim = self.dim(width)
        return (dim, dim) if self.query_key_norm_over == "each_head" else (self.num_heads * dim, self.kv_heads * dim)

    def matrix(self, tensor: str) -> str:
        """The name of the matrix that projects `query`, `key` or `value`."""
        return SHARED_MATRICES[self.shared_projection].get(tensor, tensor)

    def gates(self, width: int) -> int:
        """Features of the output gate; 0 without one."""
        return {"none": 0, "elementwise": self.num_heads * self.values(width), "headwise": self.num_heads}[self.output_gate]


class CrossAttentionOptions(SelfAttentionOptions):
    """Attention of a sequence to a memory."""

    memory: Annotated[
        str | None, NodeRef("memory"), Field(description="the node to read; the stack's memory unless written")
    ] = None
    position: Annotated[Component, SlotField("position"), Field(description="position scheme between the two sequences")] = (
        component_default("none")
    )


class FeedForwardOptions(SublayerOptions):
    """The position-wise feed-forward layer."""

    d_ff: Annotated[Size, Field(description="inner features")]
    activation: Annotated[
        Component, SlotField("activation"), Field(description="non-linear function; a gated one adds a projection")
    ]
    bias: Annotated[bool, Field(description="whether the projections have a bias")] = True
    dropout: Annotated[Probability, Field(description="dropout after the activation")] = 0.0


class AverageAttentionOptions(FeedForwardOptions):
    """The running mean of a sequence, through a feed-forward layer and gates."""

    activation: Annotated[Component, SlotField("activation"), Field(description="function of the feed-forward layer")] = (
        component_default("relu")
    )
    gate: Annotated[bool, Field(description="whether gates mix the token and what was read")] = True
