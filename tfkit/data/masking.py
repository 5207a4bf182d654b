"""Which tokens of a row are hidden, and what the model reads instead.

tokens   each token with probability `hidden`                                              https://aclanthology.org/N19-1423/
words    each word with probability `hidden`, all its pieces                               https://github.com/google-research/bert
spans    runs of 1 to 10 words, of geometric length with p = 0.2, until the share `hidden` is reached
                                                                                           https://aclanthology.org/2020.tacl-1.5/

Of the hidden tokens 80 % become `<mask>`, 10 % a random token, and 10 % stay; this is drawn for each token, for a span once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from .text_frame import MASK_ID, SPECIALS
from .tokeniser import TextTokeniser

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
LENGTHS = np.arange(1, 11)
"""The words of a span."""
SHARES = 0.2 * 0.8 ** (LENGTHS - 1) / (1 - 0.8**10)
"""The geometric distribution of its length, without longer spans."""


@dataclass(frozen=True)
class Masking:
    """How tokens are hidden.

    Attributes:
        unit: `tokens`, `words` or `spans`.
        hidden: The share of the tokens.
        starts: (V,) Whether an id starts a word; empty for `tokens`.
        special: The ids that are never hidden, and never read in place of a hidden token.
        mask_id: The id of the mask token.
    """

    unit: str
    hidden: float
    starts: Flags
    special: tuple[int, ...] = tuple(range(len(SPECIALS) + 1))
    mask_id: int = MASK_ID

    def __call__(self, ids: Ids, lengths: Ids, vocab_size: int, draw: np.random.Generator) -> tuple[Ids, Flags]:
        """Hide tokens of rows (B, L) of these lengths (B,); special tokens are never hidden, and a token of each row is.
        Returns the ids that the model reads, and which tokens are hidden."""
        places = np.arange(ids.shape[1])
        inside = (places > 0) & (places < lengths[:, None] - 1) & ~np.isin(ids, self.special, kind="table")
        groups = places[None].repeat(len(ids), 0) if self.unit == "tokens" else self._words(ids, inside)
        if self.unit == "spans":
            groups, chosen = self._spans(groups, inside, draw)
        else:
            drawn = draw.random(ids.shape) < self.hidden
            chosen = inside & np.take_along_axis(drawn, groups, 1)
        first = np.where(~chosen.any(1), groups[:, 1], -1)
        chosen |= inside & (groups == first[:, None])
        uniform = draw.random(ids.shape)
        if self.unit == "spans":
            uniform = np.take_along_axis(uniform, groups, 1)
        ordinary = _ordinary(vocab_size, self.special)
        others = ordinary[draw.integers(0, len(ordinary), ids.shape)]
        read = np.where(chosen & (uniform < 0.8), self.mask_id, np.where(chosen & (uniform >= 0.9), others, ids))
        return read, chosen

    def _words(self, ids: Ids, inside: Flags) -> Ids:
        """(B, L) The place of the first piece of the word of every token. A word also starts after a special token."""
        before = np.zeros_like(inside)
        before[:, 1:] = inside[:, :-1]
        starts = self.starts[ids] | ~inside | ~before
        places = np.where(starts, np.arange(ids.shape[1]), 0)
        return np.maximum.accumulate(places, 1)

    def _spans(self, words: Ids, inside: Flags, draw: np.random.Generator) -> tuple[Ids, Flags]:
        """The place of the first token of the span, or else of the word, of every token; and the tokens in spans. The number of
        tokens of a row in spans is its share, rounded at random to a whole number, or less by a part of a word."""
        groups, chosen = words.copy(), np.zeros_like(inside)
        for row, real in enumerate(inside):
            room = int(self.hidden * real.sum() + draw.random())
            first = np.unique(words[row, real])
            bounds = list(zip(first.tolist(), [*first[1:].tolist(), int(np.flatnonzero(real)[-1]) + 1], strict=True))
            sizes = draw.choice(LENGTHS, len(bounds), p=SHARES).tolist()
            for at, size in zip(draw.permutation(len(bounds)).tolist(), sizes, strict=True):
                if room <= 0:
                    break
                start, end = bounds[at][0], bounds[at][0]
                for _, after in bounds[at : at + size]:  # as many of the words as fit
                    if after - start > room or not real[end:after].all() or chosen[row, end:after].any():
                        break
                    end = after
                chosen[row, start:end], groups[row, start:end] = True, start
                room -= end - start
        return groups, chosen


@cache
def _ordinary(vocab_size: int, special: tuple[int, ...]) -> Ids:
    """All other ids of a vocabulary."""
    return np.setdiff1d(np.arange(vocab_size), special)


def masking_of(unit: str, hidden: float, tokeniser: TextTokeniser) -> Masking:
    """The masking of a recipe."""
    pieces = tokeniser.pieces(range(tokeniser.size)) if unit != "tokens" else []
    special, mask_id = tuple(sorted(tokeniser.special_ids - {tokeniser.unknown_id})), tokeniser.mask_id
    assert mask_id is not None, "masked data have a tokeniser with a mask token"
    return Masking(unit, hidden, np.array([tokeniser.starts_word(piece) for piece in pieces], np.bool_), special, mask_id)
