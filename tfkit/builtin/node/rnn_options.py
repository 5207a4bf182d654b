"""What a spec may write in an `rnn` node."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ...plugin import Component, OneOf, Options, Probability, Size, SlotField, component_default
from ...slots.options import AsTuple, NodeRef, SlotListField
from .options import Init, Input


class LocalOptions(Options):
    """Local attention with a predicted position, Luong's local-p."""

    half_width: Annotated[
        Size, Field(description="D: keys up to D tokens from the centre are seen, with a Gaussian of standard deviation D / 2")
    ]


class RnnAttentionOptions(Options):
    """Attention of a recurrent decoder to its memory. States and memory are queries, keys and values as they are."""

    attend: Annotated[
        str,
        OneOf("before_cell", "between_cells", "after_cell"),
        Field(
            description="which state asks: the one `before_cell` (Bahdanau), `between_cells`, two of them (conditional GRU), "
            "or `after_cell` (Luong)"
        ),
    ] = "before_cell"
    input_feeding: Annotated[bool, Field(description="whether the read-out is an input of the next step")] = False
    score: Annotated[Component, SlotField("score"), Field(description="score function")] = component_default("dot")
    scale: Annotated[float | str, OneOf("inverse_sqrt_head_dim", number=True), Field(description="factor of q.k")] = 1.0
    local: Annotated[
        LocalOptions | None,
        Field(description="attention to a window around a position that the state predicts (Luong's local-p)"),
    ] = None
    dropout: Annotated[Probability, Field(description="dropout of the attention weights")] = 0.0
    backend: Annotated[Any, SlotListField("backend"), Field(description="attention backend, or several to fall back on")] = (
        component_default("auto")
    )


class InitialStateOptions(Options):
    """The first state of a recurrent decoder, from its memory."""

    take: Annotated[
        str,
        OneOf("zeros", "last", "mean", "first_backward", "states"),
        Field(
            description="tanh(W v + b) of the `last` token, the `mean`, or the first token of a backward cell; or the last "
            "`states` of the encoder, layer by layer, as they are"
        ),
    ] = "zeros"
    bias: Annotated[bool, Field(description="whether the projection has a bias")] = True


class ReadoutOptions(Options):
    """The layer between the state of a decoder and its logits."""

    kind: Annotated[str, OneOf("linear", "tanh", "maxout"), Field(description="function of the sum of the linear maps")]
    d_model: Annotated[Size, Field(description="output width")]
    reads: Annotated[
        tuple[Annotated[str, OneOf("state", "input", "context")], ...] | None,
        Field(min_length=1, description="what it reads; unless written all there is: state, input token, context"),
        AsTuple,
    ] = None
    state: Annotated[
        str, OneOf("new", "previous"), Field(description="the state after this step, or the one before it (Bahdanau)")
    ] = "new"
    bias: bool = True
    dropout: Annotated[Probability, Field(description="dropout of the output")] = 0.0


class RnnOptions(Options):
    """A recurrent network: an encoder, a language model, or a decoder with a memory."""

    input: Input
    memory: Annotated[
        str | None, NodeRef("memory"), Field(description="a sequence to attend to, or one vector that enters every step")
    ] = None
    cell: Annotated[Component, SlotField("cell"), Field(description="recurrent cell")]
    d_state: Annotated[Size, Field(description="features of a state, per direction")]
    num_layers: Annotated[Size, Field(description="number of layers", le=64)] = 1
    bidirectional: Annotated[bool, Field(description="whether a second cell reads each layer from right to left")] = False
    cross_attention: Annotated[RnnAttentionOptions | None, Field(description="attention to a memory that is a sequence")] = None
    initial_state: Annotated[InitialStateOptions, Field(description="the state before the first token")] = InitialStateOptions()
    initial_width: Annotated[
        Size | None,
        Field(description="with `first_backward`: how many of the memory's last features are the backward state"),
    ] = None
    readout: Annotated[ReadoutOptions | None, Field(description="the layer after the recurrence")] = None
    dropout: Annotated[Probability, Field(description="dropout of the outputs of every layer, not inside the recurrence")] = 0.0
    init: Init = component_default("orthogonal")
