"""Probabilities of tokens, classes and the ends of an answer, from the outputs of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data import TextTokeniser
from .labels import labels
from .observation import Ends, Prediction

ALTERNATIVES = 5
"""Tokens that are kept at every place, the most probable ones."""


def predictions(logits: Tensor, ids: Sequence[int], tokeniser: TextTokeniser) -> tuple[Prediction, ...]:
    """The probabilities of tokens (L,) from logits (L, V)."""
    if not len(ids):
        return ()
    probabilities = logits.float().softmax(-1)
    own = probabilities.gather(1, torch.tensor(ids, device=logits.device)[:, None])[:, 0].tolist()
    best = probabilities.topk(min(ALTERNATIVES, probabilities.shape[1]))
    return tuple(
        Prediction(name, probability, tuple(zip(labels(tokeniser, numbers), values, strict=True)))
        for name, probability, numbers, values in zip(
            labels(tokeniser, ids), own, best.indices.tolist(), best.values.tolist(), strict=True
        )
    )


def best_first(names: Sequence[str], logits: Tensor) -> tuple[tuple[str, float], ...]:
    """The names with their probabilities from logits (N,), best first."""
    rows = zip(names, logits.float().softmax(-1).tolist(), strict=True)
    return tuple(sorted(rows, key=lambda row: -row[1]))


def ends(logits: Tensor, tokens: Sequence[str]) -> tuple[Ends, ...]:
    """The probabilities that an answer starts and ends at each token, from logits (L, 2)."""
    probabilities = logits.float().softmax(0).tolist()
    return tuple(Ends(token, *pair) for token, pair in zip(tokens, probabilities, strict=True))


def likeliest(found: Sequence[Ends]) -> tuple[int, int]:
    """The first and the last token of the answer with the largest product of both probabilities."""
    best, span, start = -1.0, (0, 0), 0
    for at, each in enumerate(found):
        start = at if each.start > found[start].start else start
        if found[start].start * each.end > best:
            best, span = found[start].start * each.end, (start, at)
    return span
