"""Other pieces for the same words in training: BPE dropout and unigram sampling. A model that sees several segmentations of a
word translates rare and noisy words better.

The rows of a corpus hold the pieces that the tokeniser chooses. No piece crosses the end of a word, so that a word is divided
again from its pieces alone: it is their characters, one after the other.

BPE dropout        begin with the characters; in each round, leave out each possible merge with probability p, and make the one
                   of the rest that was learned first, wherever it was not left out; end when none is left
                   https://aclanthology.org/2020.acl-main.170/, algorithm 1
unigram sampling   draw a segmentation x with a probability proportional to P(x)^alpha, P(x) the product of those of its pieces
                   https://aclanthology.org/P18-1007/, section 3.2, with l = infinity
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from ..errors import InputError
from ..recipe import Recipe
from .tokeniser import BYTES, TextTokeniser

Divide = Callable[[str, random.Random], Sequence[str]]
"""Divides a word into pieces."""


class SubwordSampler:
    """Draws other pieces for the words of a row, for a tokeniser that tfkit trained. A row that would be longer than `limit`
    stays."""

    def __init__(self, tokeniser: TextTokeniser, divide: Divide, limit: int) -> None:
        self.divide, self.limit = divide, limit
        self.vocabulary = tokeniser.vocabulary
        self.pieces = {number: piece for piece, number in self.vocabulary.items()}
        kept = {self.vocabulary[byte] for byte in BYTES if byte in self.vocabulary}
        self.whole = tokeniser.special_ids | kept
        """Ids that are no piece of a word: special tokens and bytes."""

    def __call__(self, ids: Sequence[int], draw: random.Random) -> list[int]:
        """Other ids for the same text. `draw` is seeded by the place of the row."""
        return self.with_places(ids, draw)[0]

    def with_places(self, ids: Sequence[int], draw: random.Random) -> tuple[list[int], list[range]]:
        """Other ids, and for each of `ids` where the new pieces of its word are."""
        sampled: list[int] = []
        places: list[range] = []
        for count, word in self._words(ids):
            start = len(sampled)
            sampled += [self.vocabulary[part] for part in self.divide(word, draw)] if word else [ids[len(places)]]
            places += [range(start, len(sampled))] * count
        if len(sampled) <= max(self.limit, len(ids)):
            return sampled, places
        return list(ids), [range(at, at + 1) for at in range(len(ids))]

    def of_word(self, ids: Sequence[int], place: range) -> list[int]:
        """The places of a range that hold a part of a word, and not the mark of its start alone."""
        return [at for at in place if ids[at] in self.whole or self.pieces[ids[at]] != "▁"]

    def _words(self, ids: Sequence[int]) -> Iterator[tuple[int, str]]:
        """The words of a row, each with the number of its pieces; "" for an id that stays."""
        count, word = 0, ""
        for number in ids:
            piece = "" if number in self.whole else self.pieces[number]
            if word and (not piece or piece.startswith("▁")):
                yield count, word
                count, word = 0, ""
            if piece:
                count, word = count + 1, word + piece
            else:
                yield 1, ""
        if word:
            yield count, word


def bpe_dropout(tokeniser: TextTokeniser, dropout: float) -> Divide:
    """BPE whose merges are left out with a probability."""
    merges = json.loads(tokeniser.to_json())["model"]["merges"]
    ranks = {tuple(pair if isinstance(pair, list) else pair.split(" ")): rank for rank, pair in enumerate(merges)}

    def divide(word: str, draw: random.Random) -> Sequence[str]:
        parts = list(word)
        while len(parts) > 1:
            possible = [
                (rank, at)
                for at, pair in enumerate(pairwise(parts))
                if (rank := ranks.get(pair)) is not None and draw.random() >= dropout
            ]
            if not possible:
                break
            first = min(possible)[0]
            places, end = [at for rank, at in possible if rank == first], 0
            merged: list[str] = []
            for at in places:
                if at >= end:  # three equal parts have two places, of which one is left after the merge of the other
                    merged += [*parts[end:at], parts[at] + parts[at + 1]]
                    end = at + 2
            parts = [*merged, *parts[end:]]
        return parts

    return divide


def unigram_sampling(tokeniser: TextTokeniser, alpha: float) -> Divide:
    """Segmentations drawn by their probability to the power alpha: forward sums, then a draw from the end to the start."""
    vocabulary = json.loads(tokeniser.to_json())["model"]["vocab"]
    scores = {piece: alpha * score for piece, score in vocabulary if piece not in BYTES}
    longest = max(map(len, scores))

    @lru_cache(maxsize=50_000)
    def endings(word: str) -> list[tuple[list[str], list[float]]]:
        """For each end in the word, the pieces that end there, and the sums of the weights of the segmentations up to each."""
        before = [0.0]
        table = []
        for end in range(1, len(word) + 1):
            pieces = [piece for start in range(max(0, end - longest), end) if (piece := word[start:end]) in scores]
            logs = [before[end - len(piece)] + scores[piece] for piece in pieces]
            largest = max(logs, default=-math.inf)
            weights = [math.exp(log - largest) for log in logs] if largest > -math.inf else []
            before.append(largest + math.log(sum(weights)) if weights else -math.inf)
            table.append((pieces, weights))
        return table

    def divide(word: str, draw: random.Random) -> Sequence[str]:
        table, parts, end = endings(word), list[str](), len(word)
        while end:
            pieces, weights = table[end - 1]
            [piece] = draw.choices(pieces, weights)
            parts.append(piece)
            end -= len(piece)
        return parts[::-1]

    return divide


def sampler_of(recipe: Recipe, tokeniser: TextTokeniser) -> SubwordSampler | None:
    """What draws the pieces of a recipe's training rows; None if they stay. Raises InputError for another tokeniser than the
    recipe says, which a pretrained model may have."""
    options = recipe.tokeniser.options
    dropout, sampling = getattr(options, "dropout", None), getattr(options, "sampling", None)
    if dropout is None and sampling is None:
        return None
    if tokeniser.kind != recipe.tokeniser.kind:
        name, what = ("dropout", "merges") if dropout is not None else ("sampling", "probabilities")
        kind = "an imported tokeniser" if tokeniser.imported else f"a `{tokeniser.kind}` tokeniser"
        message = f"it needs the {what} of a `{recipe.tokeniser.kind}` tokeniser, and the model has {kind}"
        raise InputError(recipe.diagnostic("TFK117", f"tokeniser.{name}", message, "remove it"))
    divide = unigram_sampling(tokeniser, sampling.alpha) if sampling is not None else bpe_dropout(tokeniser, dropout or 0.0)
    return SubwordSampler(tokeniser, divide, recipe.batching.max_length)


def draw_of(seed: int, epoch: int, row: int, column: str) -> random.Random:
    """The generator of a row in an epoch. It depends on the arguments only."""
    return random.Random(f"{seed} {epoch} {row} {column}")
