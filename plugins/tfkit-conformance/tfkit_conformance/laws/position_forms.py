"""The equations of the known position schemes, number by number in plain Python, written from the papers.

rotary          Su et al. 2021 (https://arxiv.org/abs/2104.09864), equation 34, and its scalings
sinusoidal      Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762), section 3.5
alibi           Press et al. 2022 (https://arxiv.org/abs/2108.12409), section 3, and the rule of its code for any head count
relative_t5     Raffel et al. 2020 (https://arxiv.org/abs/1910.10683), section 2.1, in whole numbers
"""

from __future__ import annotations

import math
from typing import Any


def rotary_angles(options: Any, dims: int) -> tuple[list[float], float]:
    """The angle per position of every pair of features, and what the rotated vectors are multiplied by."""
    plain = [options.base ** (-2 * pair / dims) for pair in range(dims // 2)]
    scaling = options.scaling
    if scaling is None:
        return plain, 1.0
    if scaling.kind == "linear":
        return [angle / scaling.factor for angle in plain], 1.0
    if scaling.kind == "ntk":
        base = options.base * scaling.factor ** (dims / (dims - 2))
        return [base ** (-2 * pair / dims) for pair in range(dims // 2)], 1.0
    if scaling.kind == "llama3":
        low, high = scaling.low or 1.0, scaling.high or 4.0
        return [_llama3(angle, scaling.trained_len, scaling.factor, low, high) for angle in plain], 1.0
    first, last = (_yarn_edge(turns, options.base, dims, scaling) for turns in (scaling.high or 32.0, scaling.low or 1.0))
    if scaling.truncate is None or scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    found = []
    for pair, angle in enumerate(plain):
        ramp = min(max((pair - first) / ((last - first) or 1), 0.0), 1.0)
        found.append(angle / scaling.factor * ramp + angle * (1.0 - ramp))
    return found, scaling.attention_factor or (1.0 + 0.1 * math.log(scaling.factor))


def _llama3(angle: float, trained: int, factor: float, low: float, high: float) -> float:
    """By wavelength: long waves are divided by the factor, short ones stay, those between are mixed."""
    wavelength = 2 * math.pi / angle
    if wavelength < trained / high:
        return angle
    if wavelength > trained / low:
        return angle / factor
    smooth = (trained / wavelength - low) / (high - low)
    return (1 - smooth) * angle / factor + smooth * angle


def _yarn_edge(turns: float, base: float, dims: int, scaling: Any) -> float:
    """The pair, as a real number, that turns so often within the trained length."""
    return dims * math.log(scaling.trained_len / (turns * 2 * math.pi)) / (2 * math.log(base))


def rotate(vector: list[float], position: int, angles: list[float], factor: float, interleaved: bool) -> list[float]:
    """One vector at one position."""
    turned = list(vector)
    pairs = len(angles)
    for pair, angle in enumerate(angles):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
        cosine, sine = math.cos(position * angle), math.sin(position * angle)
        a, b = vector[first], vector[second]
        turned[first] = factor * (a * cosine - b * sine)
        turned[second] = factor * (b * cosine + a * sine)
    return turned


def sinusoid(position: int, width: int, base: float, inclusive: bool, halves: bool) -> list[float]:
    """p(position), `width` numbers."""
    pairs = (width + 1) // 2
    angles = []
    for pair in range(pairs):
        share = pair / (width // 2 - 1) if inclusive else 2 * pair / width
        angles.append(position / base**share)
    if halves:
        return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles[: width // 2]]
    return [math.cos(angles[i // 2]) if i % 2 else math.sin(angles[i // 2]) for i in range(width)]


def alibi_slopes(heads: int) -> list[float]:
    """The slopes of `heads` heads. Where that is no power of two, those of the next smaller power, then every second one of
    the next larger: the rule is recursive, as the authors' code writes it."""
    if heads & (heads - 1) == 0:
        ratio = 2.0 ** (-8.0 / heads)
        return [ratio ** (head + 1) for head in range(heads)]
    smaller = 1
    while smaller * 2 <= heads:
        smaller *= 2
    return alibi_slopes(smaller) + alibi_slopes(2 * smaller)[::2][: heads - smaller]


def t5_bucket(distance: int, buckets: int, max_distance: int, causal: bool) -> int:
    """The bucket of key position - query position. floor((n - e) log(d/e) / log(m/e)) >= w where (d/e)^(n-e) >= (m/e)^w,
    which whole numbers decide without rounding."""
    shift = 0
    if causal:
        distance = -distance if distance < 0 else 0
    else:
        buckets //= 2
        shift = buckets if distance > 0 else 0
        distance = abs(distance)
    exact = buckets // 2
    if distance < exact:
        return shift + distance
    wide = buckets - exact
    left = distance**wide
    step = 0
    while step < wide - 1 and left * exact ** (step + 1) >= max_distance ** (step + 1) * exact**wide:
        step += 1
    return shift + exact + step
