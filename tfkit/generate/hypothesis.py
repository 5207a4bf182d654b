"""One generated sequence, with all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """A sequence Y of N tokens that a search found.

    ids                       (N,) token ids without the start token or the prompt; the end token is the last where it was
                              reached
    log_probability           log P(Y), the sum over its tokens
    score                     what hypotheses are ranked by: log P(Y) after the length penalty of a beam search, log P(Y) itself
                              elsewhere
    token_log_probabilities   (N,) log P(y_n | y_<n), by the model, whatever it was sampled with
    finished                  whether the end token was reached; otherwise the limit of tokens was
    attention                 by site, (H, N, K): the weights with which token n was chosen, for the sites that were asked for;
                              K are the source positions, or, in self-attention, the prompt (or start token) and the tokens
                              before the last. `generate_batched` cuts off the padding of a batch;
                              other searches leave zeros there
    """

    ids: Tensor
    log_probability: float
    score: float
    token_log_probabilities: Tensor
    finished: bool
    attention: Mapping[str, Tensor] = field(default_factory=dict)
