"""The properties of a whole model, in the order in which they are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .batching import (
    against_exact,
    batch_permutation,
    batch_split,
    by_lengths,
    deterministic,
    left_padding,
    long_sequences,
    many_rows,
    order_of_tokens,
    packed_rows,
    right_padding,
)
from .decoding import chunkings, failed_step, reordered
from .dropout import dropout_acts, training_without_dropout
from .gradients import parameter_gradients, site_gradients
from .model_under_test import ModelUnderTest
from .tokens_seen import causal_independence, inputs_matter, padding_content
from .weights import checkpoint, gradient_flow, own_parameters


@dataclass(frozen=True)
class Property:
    """`check` gives the largest error over its tolerance, None where it is exact. It raises Violation, or NotApplicable."""

    name: str
    rule: str
    summary: str
    check: Callable[[ModelUnderTest], float | None]


PROPERTIES = (
    Property("float64 run", "", "every node gives what the plain evaluation in float64 gives", against_exact),
    Property("padding by lengths", "", "the same, with padding given by lengths", by_lengths),
    Property("long sequences", "", "the same, for more than 64 positions", long_sequences),
    Property("many rows", "", "the same, for every one of many rows", many_rows),
    Property("repeat", "R1", "the same call gives the same bits", deterministic),
    Property("causal independence", "R19", "later tokens do not change earlier positions, to the bit", causal_independence),
    Property("padding content", "A6", "token ids under padding do not change real positions, to the bit", padding_content),
    Property("dependence", "", "every output depends on each of its inputs", inputs_matter),
    Property("decoding in chunks", "R20", "decoding in chunks of any sizes gives the same as one pass", chunkings),
    Property("failed step", "R21", "a step that failed leaves the state unchanged, to the bit", failed_step),
    Property("reordered rows", "R21", "rows that are kept, repeated or dropped continue like rows of their own", reordered),
    Property("right padding", "R16", "more padding on the right does not change real positions", right_padding),
    Property("left padding", "R17", "more padding on the left does not change real positions", left_padding),
    Property("batch order", "R11", "rows in another order give the same outputs in that order", batch_permutation),
    Property("batch split", "R12", "each row alone gives the same output", batch_split),
    Property("packed rows", "R12", "two documents in one row give what they give alone", packed_rows),
    Property("order of tokens", "R35", "without position schemes, the order of tokens does not matter", order_of_tokens),
    Property("dropout off", "R40", "training with dropout 0 is evaluation, to the bit", training_without_dropout),
    Property("dropout on", "R40", "in training each dropout of the spec acts, alone and with its probability", dropout_acts),
    Property("own parameters", "", "no two parameters are one tensor, unless the spec shares them", own_parameters),
    Property("gradient flow", "", "every parameter gets a finite gradient that is not zero", gradient_flow),
    Property("site gradients", "A10", "the backward pass of each attention site", site_gradients),
    Property("gradients", "A10", "every gradient is that of the plain evaluation in float64", parameter_gradients),
    Property("checkpoint", "A12", "weights load under another backend and give the same bits", checkpoint),
)
