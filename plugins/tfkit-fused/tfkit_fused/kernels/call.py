"""The arguments of kernels, in groups. A field that is None is not part of the compiled kernel.

Numbers that change from batch to batch (Q, K and the offset) are arguments of their own, on which nothing is specialised.
Groups are never nested: inside loops, Triton 3.6 forgets the constants of a tuple within a tuple, and with them whole features,
without a word.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Rows(NamedTuple):
    """A tensor (B, heads, length, features) by its address and strides, in elements."""

    at: Any
    b: Any
    h: Any
    n: Any
    d: Any


class Scores(NamedTuple):
    """`scale` and `softcap` of the scores; query heads `H`, `group` of them to a key/value head. `rising`: the scale is
    positive, so that the largest product of a query is its largest score."""

    scale: Any
    rising: Any
    softcap: Any
    H: Any
    group: Any


class Mask(NamedTuple):
    """Who may see whom. Causality is a window that ends at the query (`right` 0). Booleans are bytes."""

    offsets: Any
    left: Any
    right: Any
    key_lengths: Any
    query_lengths: Any
    key_visible: Any
    key_visible_b: Any
    key_visible_k: Any
    query_segments: Any
    query_segments_b: Any
    query_segments_q: Any
    key_segments: Any
    key_segments_b: Any
    key_segments_k: Any
    visible: Any
    visible_b: Any
    visible_h: Any
    visible_q: Any
    visible_k: Any


class Bias(NamedTuple):
    """`kind` None, "dense", "linear" or "distance"; of a table by distance `low` and `size`."""

    kind: Any
    at: Any
    b: Any
    h: Any
    q: Any
    k: Any
    low: Any
    size: Any


class Dropout(NamedTuple):
    """`seed` is None without dropout. A weight is kept where 31 random bits are not below `threshold`, and multiplied by
    `surviving`, 1 / (1 - p)."""

    seed: Any
    threshold: Any
    surviving: Any
