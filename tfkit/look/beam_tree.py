"""The hypotheses of a search as trees: hypotheses with equal beginnings share them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..generate import Hypothesis
from .observation import Beam

Row = tuple[tuple[int, ...], tuple[float, ...], float, bool]
"""The remaining ids of a hypothesis, their probabilities, its score, and whether it is the best one."""


def beam_trees(hypotheses: Sequence[Hypothesis], label: Callable[[Sequence[int]], tuple[str, ...]]) -> tuple[Beam, ...]:
    """The trees of the hypotheses of one text, best first. `label` converts ids to texts."""
    rows: list[Row] = [
        (tuple(each.ids.tolist()), tuple(map(math.exp, each.token_log_probabilities.tolist())), each.score, number == 0)
        for number, each in enumerate(hypotheses)
    ]
    return _branches(rows, label)


def _branches(rows: Sequence[Row], label: Callable[[Sequence[int]], tuple[str, ...]]) -> tuple[Beam, ...]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        if row[0]:
            groups.setdefault(row[0][0], []).append(row)
    return tuple(_beam(group, label) for group in groups.values())


def _beam(rows: Sequence[Row], label: Callable[[Sequence[int]], tuple[str, ...]]) -> Beam:
    """The tree of rows that start with the same token."""
    ids = [row[0] for row in rows]
    shared = next((at for at, each in enumerate(zip(*ids, strict=False)) if len(set(each)) > 1), min(map(len, ids)))
    rest: list[Row] = [(row[0][shared:], row[1][shared:], row[2], row[3]) for row in rows]
    ended = next((score for left, _, score, _ in rest if not left), None)
    tokens = tuple(zip(label(ids[0][:shared]), rows[0][1], strict=False))
    return Beam(tokens, ended, any(row[3] for row in rows), _branches(rest, label))
