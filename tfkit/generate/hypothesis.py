"""One generated sequence with its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..slots.lazy import load


@dataclass(frozen=True)
class Hypothesis:
    """A sequence Y of N tokens that a search found.

    Attributes:
        ids: (N,) token ids without the start token or the prompt. The last one is the end token if the sequence is finished.
        log_probability: log P(Y), the sum over its tokens.
        score: The score that ranks hypotheses: log P(Y), in a beam search divided by the length penalty.
        token_log_probabilities: (N,) log P(y_n | y_<n) of the model, before temperature, top-k and top-p.
        finished: The sequence ended with the end token, not at the limit of tokens.
        attention: (H, N, K) by requested site: the weights with which token n was predicted. K are the source positions; in
            self-attention the prompt, or the start token, and all tokens but the last. `generate_batched` removes the padding
            of a batch; other searches have zeros there.
    """

    ids: Tensor
    log_probability: float
    score: float
    token_log_probabilities: Tensor
    finished: bool
    attention: Mapping[str, Tensor] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return load("tfkit.view.pages:hypothesis_html")(self)  # type: ignore[no-any-return]
