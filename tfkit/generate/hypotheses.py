"""Generated sequences with their scores, and the finished ones of a beam search, the best `size` of each sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

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


@dataclass(frozen=True)
class BeamHistory:
    """The tokens of P hypotheses for each of S sentences.

    Attributes:
        ids: (S, P, N).
        log_probs: (S, P, N) of these tokens.
        weights: (S, P, N, H, K) attention weights with which they were chosen, by site.
    """

    ids: Tensor
    log_probs: Tensor
    weights: dict[str, Tensor]

    def pick(self, index: Tensor) -> BeamHistory:
        """The hypotheses with the indices (S', P') into all S * P."""
        shape, flat = index.shape, index.flatten()

        def rows(tensor: Tensor) -> Tensor:
            return tensor.flatten(0, 1).index_select(0, flat).view(*shape, *tensor.shape[2:])

        return BeamHistory(rows(self.ids), rows(self.log_probs), {site: rows(tensor) for site, tensor in self.weights.items()})

    def extended(self, ids: Tensor, log_probs: Tensor, weights: dict[str, Tensor]) -> BeamHistory:
        """The hypotheses with one more token each. ids and log_probs are (S, P), weights (S, P, H, K) with K at least as large
        as before."""
        return BeamHistory(
            torch.cat([self.ids, ids[..., None]], 2),
            torch.cat([self.log_probs, log_probs[..., None]], 2),
            {site: torch.cat([_padded(self.weights[site], new), new[:, :, None]], 2) for site, new in weights.items()},
        )


def _padded(old: Tensor, new: Tensor) -> Tensor:
    """Weights of earlier tokens, 0 at later keys."""
    return functional.pad(old, (0, new.shape[-1] - old.shape[-1]))


class FinishedHypotheses:
    """The best finished hypotheses of each sentence. `scores` (S, size) are in descending order, of equal ones the earlier
    first, and -inf for missing hypotheses. Unfinished hypotheses come after finished ones, unless all are `ranked`."""

    def __init__(self, sentences: int, size: int, history: BeamHistory, totals: Tensor, ranked: bool) -> None:
        self.size, self.ranked = size, ranked
        self.scores = totals.new_full((sentences, size), -torch.inf)
        self.totals = self.scores.clone()
        self.lengths = torch.zeros(sentences, size, dtype=torch.int64, device=totals.device)
        self.ended = torch.zeros(sentences, size, dtype=torch.bool, device=totals.device)
        nothing = torch.zeros(sentences, size, dtype=torch.int64, device=totals.device)
        self.history = history.pick(nothing)

    def add(self, scores: Tensor, totals: Tensor, ended: Tensor, history: BeamHistory) -> None:
        """Insert hypotheses (S, P) of one length by their scores; a score of -inf inserts nothing."""
        length = history.ids.shape[2]
        S, P = scores.shape
        before = self.history
        more = length - before.ids.shape[2]
        padded = BeamHistory(
            functional.pad(before.ids, (0, more)),
            functional.pad(before.log_probs, (0, more)),
            {
                site: functional.pad(_padded(tensor, history.weights[site]), (0, 0, 0, 0, 0, more))
                for site, tensor in before.weights.items()
            },
        )
        both = BeamHistory(
            torch.cat([padded.ids, history.ids], 1),
            torch.cat([padded.log_probs, history.log_probs], 1),
            {site: torch.cat([tensor, history.weights[site]], 1) for site, tensor in padded.weights.items()},
        )
        both_scores, both_ended = torch.cat([self.scores, scores], 1), torch.cat([self.ended, ended], 1)
        order = both_scores.argsort(dim=1, descending=True, stable=True)
        if not self.ranked:
            cut = (both_scores > -torch.inf) & ~both_ended
            missing = (both_scores == -torch.inf).to(torch.int8) * 2
            order = order.gather(1, (cut + missing).gather(1, order).argsort(dim=1, stable=True))
        order = order[:, : self.size]
        self.scores = both_scores.gather(1, order)
        self.totals = torch.cat([self.totals, totals], 1).gather(1, order)
        self.lengths = functional.pad(self.lengths, (0, P), value=length).gather(1, order)
        self.ended = both_ended.gather(1, order)
        self.history = both.pick(order + torch.arange(S, device=order.device)[:, None] * (self.size + P))

    def take(self, rows: Tensor) -> list[list[Hypothesis]]:
        """The hypotheses of the sentences `rows`, best first."""
        scores, totals = self.scores[rows].tolist(), self.totals[rows].tolist()
        lengths, ended = self.lengths[rows].tolist(), self.ended[rows].tolist()
        ids, log_probs = self.history.ids[rows], self.history.log_probs[rows]
        weights = {site: tensor[rows].transpose(2, 3) for site, tensor in self.history.weights.items()}
        hypotheses = []
        for row, row_scores in enumerate(scores):
            hypotheses.append(
                [
                    Hypothesis(
                        ids[row, rank, :length],
                        totals[row][rank],
                        score,
                        log_probs[row, rank, :length],
                        ended[row][rank],
                        {site: tensor[row, rank, :, :length] for site, tensor in weights.items()},
                    )
                    for rank, score in enumerate(row_scores)
                    if (length := lengths[row][rank])
                ]
            )
        return hypotheses

    def select(self, rows: Tensor) -> None:
        """Drop all sentences but `rows`."""
        self.scores, self.totals = self.scores[rows], self.totals[rows]
        self.lengths, self.ended = self.lengths[rows], self.ended[rows]
        history = self.history
        self.history = BeamHistory(
            history.ids[rows], history.log_probs[rows], {site: tensor[rows] for site, tensor in history.weights.items()}
        )
