"""Student's t distribution with a whole number n of degrees of freedom.

With theta = atan(t / sqrt(n)), P(|T| < t) is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4):

    n odd:   2/pi (theta + sin theta (cos theta + 2/3 cos^3 theta + ... + (2 4 ... (n-3)) / (1 3 ... (n-2)) cos^(n-2) theta))
    n even:  sin theta (1 + 1/2 cos^2 theta + ... + (1 3 ... (n-3)) / (2 4 ... (n-2)) cos^(n-2) theta)
"""

from __future__ import annotations

import math


def central_probability(t: float, degrees: int) -> float:
    """P(|T| < t) for t >= 0."""
    theta = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term, total = (math.cos(theta), 0.0) if odd else (1.0, 0.0)
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= math.cos(theta) ** 2 * (power + 1) / (power + 2)
    inner = math.sin(theta) * total
    return 2 / math.pi * (theta + inner) if odd else inner


def quantile(probability: float, degrees: int) -> float:
    """The t with P(|T| < t) = probability, by bisection."""
    low, high = 0.0, 1.0
    while central_probability(high, degrees) < probability:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if central_probability(middle, degrees) < probability else (low, middle)
    return high
