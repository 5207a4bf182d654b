"""A pairwise covering array: few rows in which every two values of every two factors that can meet do meet.

Greedy, one row at a time, in the manner of Cohen, Dalal, Fredman and Patton 1997 (https://doi.org/10.1109/32.605761): a row
starts with the uncovered pair whose values occur in most uncovered pairs, and each further factor takes the value that
covers most pairs with those already chosen. No chance is involved: equal counts go to the value that stands first.

Whether values can meet is asked of `refusal(row)`, which gives the reason why a whole row cannot be, or "" where it can.
A pair is left out only when no row with it is accepted: first the one that differs from `plain` in it alone, then those that
differ in one further factor; the reason given is that of the first.
"""

from __future__ import annotations

# Not allpairspy: its filter sees unfinished rows, and it does not report which pairs it left out, nor why.
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

Row = Mapping[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


@dataclass(frozen=True)
class Covering:
    """`rows` cover every pair but those `excluded`, each with the reason of the rules."""

    rows: tuple[Row, ...]
    excluded: Mapping[Pair, str]


def pairs_of(factors: Mapping[str, Sequence[str]]) -> Iterator[Pair]:
    """Every pair of values of two factors."""
    for one, other in combinations(factors, 2):
        for value, second in product(factors[one], factors[other]):
            yield (one, value), (other, second)


def pairs_in(row: Row) -> Iterator[Pair]:
    """The pairs that meet in a row."""
    return combinations(row.items(), 2)


def covering(factors: Mapping[str, Sequence[str]], plain: Row, refusal: Callable[[Row], str]) -> Covering:
    """A covering array of `factors`; rows keep their order of factors. `plain` is a row that is accepted.

    Raises ValueError where `plain` itself is refused.
    """
    known: dict[tuple[str, ...], str] = {}

    def refused(row: Row) -> str:
        key = tuple(row[name] for name in factors)
        if key not in known:
            known[key] = refusal(row)
        return known[key]

    if reason := refused(plain):
        raise ValueError(f"the plain row is refused: {reason}")
    open_pairs = dict.fromkeys(pairs_of(factors))
    excluded: dict[Pair, str] = {}
    rows: list[Row] = []
    while open_pairs:
        start = _heaviest(open_pairs)
        row = _grown(factors, dict(start), open_pairs, excluded)
        if refused(row):
            reason, row = _fallback(factors, plain, start, refused, open_pairs)
            if reason:
                excluded[start] = reason
                del open_pairs[start]
                continue
        rows.append(row)
        for pair in pairs_in(row):
            open_pairs.pop(pair, None)
    return Covering(tuple(rows), excluded)


def _heaviest(open_pairs: Mapping[Pair, None]) -> Pair:
    """The pair whose two values occur in most open pairs."""
    weight: dict[tuple[str, str], int] = {}
    for pair in open_pairs:
        for value in pair:
            weight[value] = weight.get(value, 0) + 1
    return max(open_pairs, key=lambda pair: weight[pair[0]] + weight[pair[1]])


def _grown(
    factors: Mapping[str, Sequence[str]], row: dict[str, str], open_pairs: Mapping[Pair, None], excluded: Mapping[Pair, str]
) -> Row:
    """The row filled up factor by factor, the largest first, without a pair that is known to be impossible."""
    order = {name: number for number, name in enumerate(factors)}

    def with_row(name: str, value: str) -> list[Pair]:
        both = [sorted(((name, value), item), key=lambda item: order[item[0]]) for item in row.items()]
        return [(first, second) for first, second in both]

    for name in sorted((name for name in factors if name not in row), key=lambda name: -len(factors[name])):
        scores = []
        for value in factors[name]:
            pairs = with_row(name, value)
            impossible = sum(pair in excluded for pair in pairs)
            scores.append((-impossible, sum(pair in open_pairs for pair in pairs)))
        row[name] = factors[name][scores.index(max(scores))]
    return {name: row[name] for name in factors}


def _fallback(
    factors: Mapping[str, Sequence[str]],
    plain: Row,
    pair: Pair,
    refused: Callable[[Row], str],
    open_pairs: Mapping[Pair, None],
) -> tuple[str, Row]:
    """An accepted row with a pair, plainer than the one that was refused; or the reason why there is none."""
    base = {**plain, **dict(pair)}
    first = refused(base)
    rest = [name for name in factors if name not in dict(pair)]
    nearest = [base] + [{**base, name: value} for name in rest for value in factors[name]]
    found = next((row for row in nearest if not refused(row)), None)
    if found is None:
        return first, base
    # From there, one factor after another takes what covers most and is still accepted.
    for name in rest:
        gains = {value: sum(p in open_pairs for p in pairs_in({**found, name: value})) for value in factors[name]}
        for value in sorted(gains, key=lambda value: -gains[value]):
            if gains[value] <= gains[found[name]]:
                break
            if not refused({**found, name: value}):
                found = {**found, name: value}
                break
    return "", found
