"""One generated sequence with its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """A sequence Y of N tokens that a search found.

    Attributes:
        ids: (N,) token ids without the start token or the prompt; the end token is the last where it was reached.
        log_probability: log P(Y), the sum over its tokens.
        score: What hypotheses are ranked by: in a beam search log P(Y) after the length penalty, otherwise log P(Y).
        token_log_probabilities: (N,) log P(y_n | y_<n) of the model, whatever a sample was drawn with.
        finished: Whether the end token was reached, and not the limit of tokens.
        attention: (H, N, K) by requested site: the weights with which token n was chosen. K are the source positions; in
            self-attention the prompt, or the start token, and all tokens but the last. `generate_batched` removes the padding
            of a batch; other searches have zeros there.
    """

    ids: Tensor
    log_probability: float
    score: float
    token_log_probabilities: Tensor
    finished: bool
    attention: Mapping[str, Tensor] = field(default_factory=dict)
