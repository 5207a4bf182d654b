"""The lexical table of a parallel text: t(t|s), the probability that a source id is translated by a target id.

IBM model 1 (Brown et al. 1993, https://aclanthology.org/J93-2003): each target token is aligned with one source token, or with
none, and every place is as likely as another. Its parameters are found by expectation maximisation,

    c(t, s) = sum over sentence pairs, target tokens t and source tokens s   t(t|s) / sum_s' t(t|s')
    t(t|s)  = c(t, s) / sum_t' c(t', s)

where s' runs over the source tokens and the empty token. The text is read once for each iteration, a chunk at a time. The table
holds at most `MAX_ENTRIES` pairs: the first pass drops the least likely ones beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK = 4_000_000
"""Pairs of tokens that are counted at a time."""
MAX_ENTRIES = 32_000_000
"""Pairs of ids in the table, which take 16 bytes each."""

Array = npt.NDArray[np.float64]
Keys = npt.NDArray[np.int64]
Pairs = Iterable[tuple[Sequence[int], Sequence[int]]]
"""The ids of each source and its translation."""


def lexical_table(
    pairs: Callable[[], Pairs], source_size: int, target_size: int, iterations: int, max_entries: int = MAX_ENTRIES
) -> tuple[Keys, Array, Array]:
    """Learn a table by expectation maximisation. `pairs` begins to read the text anew; the empty token has the source id
    `source_size`; `max_entries` pairs stay after the first pass. Returns keys s * target_size + t of the pairs in increasing
    order; their probabilities; and how often each target id occurs."""
    keys, counts = np.zeros(0, np.int64), np.zeros(0)
    frequencies = np.zeros(target_size)
    for number in range(iterations):
        probabilities = _normalised(keys, counts, target_size)
        totals = np.zeros(len(keys))
        for chunk, groups, targets in _chunks(pairs(), source_size, target_size):
            if number == 0:
                frequencies += np.bincount(targets, minlength=target_size)
                shares = 1.0 / np.bincount(groups)[groups]
                distinct, places = np.unique(chunk, return_inverse=True)
                keys, counts = _merged(keys, counts, distinct, _sums(places, shares, len(distinct)), max_entries)
                continue
            places = np.searchsorted(keys, chunk).clip(max=len(keys) - 1)
            likely = np.where(keys[places] == chunk, probabilities[places], 0.0)
            sums = np.bincount(groups, likely)[groups]
            totals += np.bincount(places, np.divide(likely, sums, out=np.zeros_like(likely), where=sums > 0), len(keys))
        counts = totals if number else counts
    return keys, _normalised(keys, counts, target_size), frequencies


def _chunks(pairs: Pairs, source_size: int, target_size: int) -> Iterator[tuple[Keys, Keys, Keys]]:
    """Keys of all pairs of tokens of some sentence pairs, the number of the target token of each, and the target tokens."""
    keys: list[Keys] = []
    groups: list[Keys] = []
    targets: list[Keys] = []
    tokens, size = 0, 0
    for source, target in pairs:
        if not len(source) or not len(target):
            continue
        sources, one = np.array([source_size, *source], np.int64), np.array(target, np.int64)
        keys.append((sources * target_size + one[:, None]).ravel())
        groups.append(np.repeat(np.arange(tokens, tokens + len(one)), len(sources)))
        targets.append(one)
        tokens, size = tokens + len(one), size + len(keys[-1])
        if size >= CHUNK:
            yield np.concatenate(keys), np.concatenate(groups), np.concatenate(targets)
            keys, groups, targets, tokens, size = [], [], [], 0, 0
    if size:
        yield np.concatenate(keys), np.concatenate(groups), np.concatenate(targets)


def _merged(keys: Keys, counts: Array, new_keys: Keys, new_counts: Array, most: int) -> tuple[Keys, Array]:
    """The sums of two tables; of more than `most` pairs, those with the largest counts."""
    both, places = np.unique(np.concatenate([keys, new_keys]), return_inverse=True)
    sums = _sums(places, np.concatenate([counts, new_counts]), len(both))
    if len(both) > most:
        kept = np.sort(np.argpartition(sums, -most)[-most:])
        both, sums = both[kept], sums[kept]
    return both, sums


def _sums(places: Any, values: Array, size: int) -> Array:
    """The sum of the values at each place."""
    return np.bincount(places, values, size).astype(np.float64)


def _normalised(keys: Keys, counts: Array, target_size: int) -> Array:
    """Counts divided by their sum over the target ids of each source id."""
    sources = keys // target_size
    sums = np.bincount(sources, counts) if len(keys) else np.zeros(1)
    shares: Array = np.divide(counts, sums[sources], out=np.zeros_like(counts), where=sums[sources] > 0)
    return shares


def likeliest(keys: Keys, probabilities: Array, source_size: int, target_size: int, most: int) -> tuple[Keys, Keys]:
    """The likeliest target ids of each source id, at most `most`, from what `lexical_table` returns: the first entry of each
    source id and the end of the last one (source_size + 1,), and the target ids (N,), those of one source id in increasing
    order."""
    keys, probabilities = keys[probabilities > 0], probabilities[probabilities > 0]
    sources, targets = keys // target_size, keys % target_size
    order = np.lexsort((targets, -probabilities, sources))
    first = np.searchsorted(sources, sources)  # of each entry the first of its source id
    rank = np.empty(len(keys), np.int64)
    rank[order] = np.arange(len(keys)) - first[order]
    kept = (rank < most) & (sources < source_size)
    return np.searchsorted(sources[kept], np.arange(source_size + 1)), targets[kept]
