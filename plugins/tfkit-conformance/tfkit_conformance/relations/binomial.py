"""Exact tails of the binomial distribution: what a count of independent draws may be, at a stated chance of a false alarm.

P(X <= k) = sum_{i<=k} C(n, i) q^i (1-q)^(n-i)        C by the logarithm of the gamma function
"""

from __future__ import annotations

import math


def tail(successes: int, draws: int, chance: float) -> float:
    """The probability of a count at least as far out, on its own side, as the one that was found, times 2 for both sides."""
    below = successes <= draws * chance
    steps = range(successes, -1, -1) if below else range(successes, draws + 1)
    total = 0.0
    for count in steps:
        term = _probability(count, draws, chance)
        total += term
        if term < total * 1e-17:
            break  # the rest falls at least geometrically
    return min(1.0, 2 * total)


def interval(draws: int, chance: float, alarm: float) -> tuple[int, int]:
    """The smallest and the largest count whose `tail` is at least `alarm`."""
    middle = round(draws * chance)

    def last(far: int) -> int:
        """The count farthest from the middle towards `far` that is likely enough, by bisection: tails only fall outwards."""
        near = middle
        if tail(far, draws, chance) >= alarm:
            return far
        while abs(far - near) > 1:
            between = (near + far) // 2
            near, far = (between, far) if tail(between, draws, chance) >= alarm else (near, between)
        return near

    return last(0), last(draws)


def _probability(count: int, draws: int, chance: float) -> float:
    if chance in (0.0, 1.0):
        return float(count == draws * chance)
    ways = math.lgamma(draws + 1) - math.lgamma(count + 1) - math.lgamma(draws - count + 1)
    return math.exp(ways + count * math.log(chance) + (draws - count) * math.log1p(-chance))
