"""Generated sequences with their scores, and how a beam search holds them: a level for every step, which names the hypothesis
that each one continues, and the best finished ones of each sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

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


class Level(NamedTuple):
    """One step of a beam search: the token that each live hypothesis (S, k) got, and the hypothesis that it continues.

    Attributes:
        rows: (S, k) the hypothesis before, as an index into all of the level before.
        ids: (S, k).
        log_probs: (S, k) of these tokens.
    """

    rows: Tensor
    ids: Tensor
    log_probs: Tensor


class Finished(NamedTuple):
    """The best finished hypotheses (S, size) of each sentence, best first, with a score of -inf for missing ones. `rows`, `ids`
    and `log_probs` are those of their last token, as in `Level`."""

    scores: Tensor
    totals: Tensor
    lengths: Tensor
    ended: Tensor
    rows: Tensor
    ids: Tensor
    log_probs: Tensor

    @classmethod
    def none(cls, totals: Tensor, size: int) -> Finished:
        """No hypothesis of each sentence, of which there are as many as rows of `totals`."""
        missing = totals.new_full((len(totals), size), -torch.inf)
        zeros = torch.zeros_like(missing, dtype=torch.int64)
        return cls(missing, missing.clone(), zeros, zeros.bool(), zeros.clone(), zeros.clone(), missing.clone())

    def of(self, sentences: Tensor) -> Finished:
        """The hypotheses of some sentences."""
        return Finished(*(held[sentences] for held in self))

    def insert(self, new: Finished, ranked: bool) -> Finished:
        """The best of these hypotheses and of new ones, of equal scores these first. Unfinished hypotheses come after finished
        ones, unless all are `ranked`."""
        every = Finished(*(torch.cat(pair, 1) for pair in zip(self, new, strict=True)))
        order = every.scores.argsort(dim=1, descending=True, stable=True)
        if not ranked:
            missing = every.scores == -torch.inf
            last = missing.to(torch.int8) * 2 + (~missing & ~every.ended)
            order = order.gather(1, last.gather(1, order).argsort(dim=1, stable=True))
        return Finished(*(held.gather(1, order[:, : self.scores.shape[1]]) for held in every))


def hypotheses_of(
    finished: Finished, levels: Sequence[Level], weights: Sequence[Mapping[str, Tensor]]
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, best first.

    Args:
        finished: They, with their last tokens.
        levels: The steps of the search, which gave the tokens before.
        weights: By site, the attention weights (R, H, K) with which each step chose its tokens, of the rows before it.
    """
    starts = list(accumulate((level.ids.numel() for level in levels), initial=0))
    parts = [[held.flatten() for held in part] for part in zip(*levels, strict=True)]
    parents, ids, log_probs = (torch.cat(part).tolist() for part in parts) if levels else ([], [], [])
    hypotheses: list[list[Hypothesis]] = []
    for entries in zip(*(held.tolist() for held in finished), strict=True):
        hypotheses.append([])
        for score, total, length, ended, *last in zip(*entries, strict=True):
            if not length:
                continue
            path = [last]
            for start in reversed(starts[: length - 1]):
                at = start + path[-1][0]
                path.append([parents[at], ids[at], log_probs[at]])
            rows, tokens, values = zip(*reversed(path), strict=True)
            attention = {
                site: stacked([step[site][row] for step, row in zip(weights, rows, strict=False)]) for site in weights[0]
            }
            of_tokens = finished.log_probs.new_tensor(values)
            hypotheses[-1].append(Hypothesis(finished.ids.new_tensor(tokens), total, score, of_tokens, ended, attention))
    return hypotheses


def stacked(steps: Sequence[Tensor]) -> Tensor:
    """The weights (..., H, K) of all steps as (..., H, N, K), 0 at keys of later steps."""
    keys = steps[-1].shape[-1]
    return torch.stack([functional.pad(step, (0, keys - step.shape[-1])) for step in steps], -2)
