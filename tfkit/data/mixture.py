"""How often an epoch reads the rows of several corpora.

An epoch has as many rows as the corpora have together, N. Corpus i gives N * p_i of them, at least one:

    weights        p_i = weight_i / sum of all weights
    temperature    p_i = n_i^(1/T) / sum of n_j^(1/T), for n_i rows        https://arxiv.org/abs/1907.05019, section 4.1

The rows of a corpus come in a random order that is drawn again when all were read. An epoch continues where the one before it
ended, so that no row is read twice before all others of its corpus were read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..recipe import Recipe

Numbers = npt.NDArray[np.int64]
ORDER = 0x6F72646572
"""Distinguishes the seeds of these orders from others of a run."""


def shares_of(recipe: Recipe, sizes: Mapping[str, int]) -> list[float] | None:
    """The share of an epoch of each corpus, given its number of rows by name; None if an epoch is all rows of all corpora."""
    corpora = getattr(recipe.data.options, "corpora", None)
    if corpora is None:
        return None
    temperature = recipe.data.options.temperature
    if temperature is not None:
        largest = max(sizes.values())
        weights = [(sizes[corpus.name] / largest) ** (1 / temperature) for corpus in corpora]
    elif any(corpus.weight is not None for corpus in corpora):
        weights = [1.0 if corpus.weight is None else corpus.weight for corpus in corpora]
    else:
        return None
    return [weight / sum(weights) for weight in weights]


@dataclass(frozen=True)
class Mixture:
    """The rows of every epoch.

    Attributes:
        sizes: The rows of each corpus; they follow each other in the file.
        counts: The rows of an epoch of each corpus.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], shares: Sequence[float]) -> Mixture:
        """The mixture with these shares of an epoch. What rounding leaves over goes to the largest remainders."""
        total = sum(sizes)
        counts = [max(1, int(total * share)) for share in shares]
        remainders = sorted(range(len(sizes)), key=lambda at: (counts[at] - total * shares[at], at))
        for at in remainders[: max(0, total - sum(counts))]:
            counts[at] += 1
        return cls(tuple(sizes), tuple(counts))

    def rows(self, seed: int, epoch: int) -> Numbers:
        """The row numbers of an epoch, counted from 1. They depend on the arguments only."""
        first, parts = 0, []
        for number, (size, count) in enumerate(zip(self.sizes, self.counts, strict=True)):
            start, end = (epoch - 1) * count, epoch * count
            passes = range(start // size, -(-end // size))
            orders = [
                np.random.Generator(np.random.PCG64([seed, ORDER, number, of_pass])).permutation(size) for of_pass in passes
            ]
            order = np.concatenate(orders)[start - passes.start * size :][:count]
            parts.append(first + order)
            first += size
        return np.concatenate(parts)
