"""The properties of a whole model, in the order in which they are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .batching import batch_permutation, batch_split, left_padding, right_padding
from .decoding import chunkings, failed_step, reordered
from .gradients import parameter_gradients, site_gradients
from .model_under_test import ModelUnderTest
from .order import order_of_tokens
from .repeated import deterministic, dropout_acts, training_without_dropout
from .tokens_seen import causal_independence, inputs_matter, padding_content
from .weights import checkpoint, gradient_flow


@dataclass(frozen=True)
class Property:
    """`check` gives the largest error over its tolerance, None where it is exact. It raises Violation, or NotApplicable."""

    name: str
    rule: str
    summary: str
    check: Callable[[ModelUnderTest], float | None]


PROPERTIES = (
    Property("repeat", "R1", "the same call gives the same bits", deterministic),
    Property("causal independence", "R19", "later tokens change nothing before them, to the bit", causal_independence),
    Property("padding content", "A6", "ids under padding change nothing real, to the bit", padding_content),
    Property("dependence", "", "every input changes every output that follows it", inputs_matter),
    Property("decoding in chunks", "R20", "step by step, in any chunks, as in one pass", chunkings),
    Property("failed step", "R21", "a step that failed leaves no trace, to the bit", failed_step),
    Property("reordered rows", "R21", "hypotheses kept, repeated and dropped go on as their own rows", reordered),
    Property("right padding", "R16", "more padding on the right changes nothing real", right_padding),
    Property("left padding", "R17", "more padding on the left changes nothing real", left_padding),
    Property("batch order", "R11", "rows in another order", batch_permutation),
    Property("batch split", "R12", "each row alone", batch_split),
    Property("order of tokens", "R35", "order is known by positions alone", order_of_tokens),
    Property("dropout off", "R40", "training with dropout 0 is evaluation, to the bit", training_without_dropout),
    Property("dropout on", "R40", "the dropout of the spec acts in training", dropout_acts),
    Property("gradient flow", "", "every parameter gets a finite gradient that is not zero", gradient_flow),
    Property("site gradients", "A10", "the backward of each site, for the gradient that reached it", site_gradients),
    Property("gradients", "A10", "the gradient of every parameter is that of a float64 run", parameter_gradients),
    Property("checkpoint", "A12", "weights carry between backends, to the bit", checkpoint),
)
