"""The built-in score filters: scores (R, V) and a prefix (R, N) -> scores (R, V)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...plugin import Diagnostic, InputError, Prefix
from .entries import FirstOptions, IdOptions, IdsOptions, MinTokensOptions, NgramOptions, PenaltyOptions, SequencesOptions


def suppress(scores: Tensor, prefix: Prefix, options: IdsOptions) -> Tensor:
    """Forbids tokens."""
    return scores.index_fill(1, _checked(options.ids, scores), -torch.inf)


def suppress_first(scores: Tensor, prefix: Prefix, options: FirstOptions) -> Tensor:
    """Forbids tokens as the first new token, or after `after` others."""
    return suppress(scores, prefix, options) if prefix.generated == options.after else scores


def allow(scores: Tensor, prefix: Prefix, options: IdsOptions) -> Tensor:
    """Forbids all tokens but these and the end token."""
    ids = _checked(options.ids if prefix.end_id is None else (*options.ids, prefix.end_id), scores)
    return torch.full_like(scores, -torch.inf).index_copy(1, ids, scores[:, ids])


def bad_words(scores: Tensor, prefix: Prefix, options: SequencesOptions) -> Tensor:
    """Forbids the last token of each sequence where the tokens before it are the others."""
    last = _checked(tuple(sequence[-1] for sequence in options.sequences), scores)
    forbidden = torch.zeros_like(scores, dtype=torch.bool)
    for (*before, _), token in zip(options.sequences, last, strict=True):
        if len(before) <= prefix.ids.shape[1]:
            tail = prefix.ids[:, prefix.ids.shape[1] - len(before) :]
            forbidden[:, token] |= (tail == tail.new_tensor(before)).all(1)
    return scores.masked_fill(forbidden, -torch.inf)


def forced_first(scores: Tensor, prefix: Prefix, options: IdOptions) -> Tensor:
    """The first new token."""
    return scores if prefix.generated else _only(options.id, scores)


def forced_last(scores: Tensor, prefix: Prefix, options: IdOptions) -> Tensor:
    """The token at the limit of tokens."""
    return torch.where((prefix.remaining == 1)[:, None], _only(options.id, scores), scores)


def min_tokens(scores: Tensor, prefix: Prefix, options: MinTokensOptions) -> Tensor:
    """Forbids the end token until there are enough new tokens."""
    if prefix.end_id is None or prefix.generated >= options.tokens:
        return scores
    return scores.index_fill(1, torch.tensor([prefix.end_id], device=scores.device), -torch.inf)


def no_repeat_ngram(scores: Tensor, prefix: Prefix, options: NgramOptions) -> Tensor:
    """Forbids a token that, with the n - 1 tokens before it, occurred already; a prompt counts.

    Reference: https://arxiv.org/abs/1705.04304, section 2.5
    """
    ids, n = prefix.ids, options.size
    if ids.shape[1] < n:
        return scores
    ngrams = ids.unfold(1, n, 1)  # (R, N - n + 1, n)
    tail = ids[:, ids.shape[1] - (n - 1) :]  # (R, n - 1)
    repeated = (ngrams[:, :, :-1] == tail[:, None]).all(2) & (ngrams >= 0).all(2)
    return scores.masked_fill(_marked(ngrams[:, :, -1], repeated, scores), -torch.inf)


def repetition_penalty(scores: Tensor, prefix: Prefix, options: PenaltyOptions) -> Tensor:
    """s / factor for a score s above 0, s * factor below, for tokens that occurred; a prompt counts.

    Reference: https://arxiv.org/abs/1909.05858, section 4.1
    """
    penalised = torch.where(scores < 0, scores * options.factor, scores / options.factor)
    return torch.where(_marked(prefix.ids, prefix.ids >= 0, scores), penalised, scores)


def _only(token: int, scores: Tensor) -> Tensor:
    """Score 0 for one token, -inf for the others."""
    return torch.full_like(scores, -torch.inf).index_fill(1, _checked((token,), scores), 0.0)


def _marked(ids: Tensor, counted: Tensor, scores: Tensor) -> Tensor:
    """(R, V), True for the tokens among ids (R, N) that are counted (R, N)."""
    R, V = scores.shape
    marked = torch.zeros(R, V + 1, dtype=torch.bool, device=scores.device)  # the last column takes those that are not
    return marked.scatter(1, torch.where(counted, ids, V), True)[:, :V]


def _checked(ids: tuple[int, ...], scores: Tensor) -> Tensor:
    """Ids as a tensor. Raises InputError for an id beyond the vocabulary."""
    if max(ids) >= scores.shape[1]:
        message = f"a score filter names the id {max(ids)}, and the vocabulary has {scores.shape[1]} ids"
        raise InputError(Diagnostic("TFK072", message, f"ids are 0..{scores.shape[1] - 1}"))
    return torch.tensor(ids, device=scores.device)
