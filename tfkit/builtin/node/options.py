"""The options of the built-in node kinds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ...plugin import Component, OneOf, Options, Positive, Probability, Size, SlotField, component_default
from ...slots.layer import Layer
from ...slots.options import AsTuple, LayersField, NodeRef, TokenId

Norm = Annotated[Component, SlotField("norm")]
Position = Annotated[Component, SlotField("position")]
Init = Annotated[Component, SlotField("init"), Field(description="how the weights are drawn")]
Input = Annotated[str, NodeRef("input"), Field(description="the node it reads")]


class TokensOptions(Options):
    """Token ids to vectors; an input of the model."""

    d_model: Annotated[Size, Field(description="width of the vectors")]
    vocab_size: Annotated[Size | None, Field(description="number of ids; the owner's where the table is shared")] = None
    share: Annotated[str | None, NodeRef("owner"), Field(description="the tokens node whose table is used")] = None
    pad_id: Annotated[TokenId | None, Field(description="the id of padding; marks none where it is also `end_id`")] = None
    start_id: Annotated[TokenId | None, Field(description="the id a decoded sequence starts with; never padding")] = None
    end_id: Annotated[TokenId | None, Field(description="the id a decoded sequence ends with")] = None
    scale: Annotated[float | str, OneOf("sqrt_d_model", number=True), Field(description="factor of the embedding")] = 1.0
    segments: Annotated[Size | None, Field(description="number of segment embeddings (BERT's token types)")] = None
    position: Annotated[Position, Field(description="position scheme that acts on embeddings")] = component_default("none")
    embedding_norm: Annotated[Norm, Field(description="norm after the sum of the embeddings")] = component_default("none")
    dropout: Annotated[Probability, Field(description="dropout of the embeddings")] = 0.0
    init: Init = component_default("xavier")

    @property
    def factor(self) -> float:
        return self.scale if isinstance(self.scale, float) else float(self.d_model) ** 0.5


class StackOptions(Options):
    """A stack of layers."""

    input: Input
    memory: Annotated[str | None, NodeRef("memory"), Field(description="the node its cross-attention reads")] = None
    causal: Annotated[bool | None, Field(description="whether a token sees only itself and those before it")] = None
    final_norm: Annotated[Norm, Field(description="norm after the last layer; the placement's answer unless written")] = (
        component_default("none")
    )
    checkpoint: Annotated[bool, Field(description="compute activations again in the backward pass instead of keeping them")] = (
        False
    )
    init: Init = component_default("xavier")
    layers: Annotated[tuple[Layer, ...], AsTuple, LayersField(), Field(min_length=1, description="the pattern of layers")]


class DenseOptions(Options):
    """A linear map, an activation, a norm: projection, pooler and transform in one."""

    input: Input
    d_model: Annotated[Size | None, Field(description="output width; the input's unless written")] = None
    activation: Annotated[Component, SlotField("activation"), Field(description="not gated")] = component_default("identity")
    output_norm: Annotated[Norm, Field(description="norm of the output")] = component_default("none")
    bias: bool = True
    dropout: Probability = 0.0
    init: Init = component_default("xavier")


class TokenLogitsOptions(Options):
    """Scores over a vocabulary, from a table of its own or a shared one."""

    input: Input
    vocab_size: Annotated[Size | None, Field(description="number of ids; the owner's where the table is shared")] = None
    share: Annotated[str | None, NodeRef("owner"), Field(description="the tokens node whose table is used")] = None
    scale: Annotated[float | str, OneOf("inverse_sqrt_d_model", number=True), Field(description="factor of the input")] = 1.0
    softcap: Annotated[Positive | None, Field(description="c in c * tanh(logit / c)")] = None
    bias: Annotated[bool | str, OneOf("frozen", flag=True), Field(description="`frozen`: there, but not learnt")] = False
    init: Init = component_default("xavier")


class ProbabilitiesOptions(Options):
    """softmax of the logits that it reads."""

    input: Input


class PoolOptions(Options):
    """One vector for a sequence."""

    input: Input
    take: Annotated[str, OneOf("first", "last", "mean", "max", "end_token"), Field(description="which tokens make the vector")]
    tokens: Annotated[str | None, NodeRef("tokens"), Field(description="the tokens node whose end token is taken")] = None
    output_norm: Annotated[Norm, Field(description="norm of the vector")] = component_default("none")


class ClassifyOptions(Options):
    """Scores over classes."""

    input: Input
    classes: Size
    bias: bool = True
    dropout: Probability = 0.0
    init: Init = component_default("xavier")


class LayerMixOptions(Options):
    """A learnt mix of the layers of a stack or an rnn."""

    input: Annotated[str, NodeRef("input"), Field(description="the port `layers` of a stack or an rnn")]
    embeddings: Annotated[bool, Field(description="whether the input of the first layer is part of the mix")] = True
