"""The formulas of the built-in position schemes, by the place where they act.

    embeddings     f(options, site, weights, x (B, L, M), positions (B, L)) -> (B, L, W)
    queries_keys   f(options, site, weights, x (B, H, L, D), positions (L,)) -> (B, H, L, D)
    scores         f(options, site, weights, query (B, H, Q, D), distances (Q, K), scale) -> the bias (B, H, Q, K)

A distance is the position of the key less that of the query. Angles, slopes and buckets are computed in float64 and
rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, pi
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def _combined(options: Any, weights: Weights, x: Tensor, p: Tensor) -> Tensor:
    """x + p, W [x; p] or [x; p]."""
    if options.combine == "add":
        return x + p
    both = torch.cat([x, p], -1)
    return both @ weights["projection.weight"].mT if options.combine == "concat" else both


def _frequencies(count: int, width: float, options: Any) -> Tensor:
    """base^(-2 i / width), i = 0 .. count - 1; `inclusive` ends at 1 / base."""
    i = torch.arange(count, dtype=torch.float64) + getattr(options, "first_pair", 0)
    exponents = -i / (count - 1) if options.last_frequency == "inclusive" else -2.0 * i / width
    return torch.pow(options.base, exponents)


def sinusoidal(options: Any, site: Any, weights: Weights, x: Tensor, positions: Tensor) -> Tensor:
    """PE(pos, 2i) = sin(pos / base^(2i / P)), PE(pos, 2i + 1) = cos(same), Vaswani et al. 2017, section 3.5
    (https://arxiv.org/abs/1706.03762). An odd P ends in a sine."""
    P = options.d_position or site.width
    angles = (positions + options.offset).double()[..., None] * _frequencies((P + 1) // 2, P, options).to(x.device)
    table = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., :P]
    return _combined(options, weights, x, table.to(x.dtype))


def sinusoidal_halves(options: Any, site: Any, weights: Weights, x: Tensor, positions: Tensor) -> Tensor:
    """The features of `sinusoidal`, all sines first, as in tensor2tensor and Marian."""
    P = options.d_position or site.width
    angles = (positions + options.offset).double()[..., None] * _frequencies((P + 1) // 2, P, options).to(x.device)
    table = torch.cat([angles.sin(), angles.cos()[..., : P // 2]], -1)
    return _combined(options, weights, x, table.to(x.dtype))


def sinusoidal_2d(options: Any, site: Any, weights: Weights, x: Tensor, positions: Tensor) -> Tensor:
    """Half of the features for the column, half for the row, each all sines, then all cosines, Chen et al. 2021
    (https://arxiv.org/abs/2104.02057) and He et al. 2021 (https://arxiv.org/abs/2111.06377). What comes before the patches has
    no position."""
    rows, columns = site.grid
    quarter = site.width // 4
    frequencies = _frequencies(quarter, site.width / 2, options)
    y, x_ = torch.meshgrid(torch.arange(rows).double(), torch.arange(columns).double(), indexing="ij")
    angles = [coordinates.flatten()[:, None] * frequencies for coordinates in (x_, y)]
    patches = torch.cat([part for angle in angles for part in (angle.sin(), angle.cos())], -1)
    table = torch.cat([patches.new_zeros(site.prefix, site.width), patches]).to(x)
    return x + table[positions]


def learned(options: Any, site: Any, weights: Weights, x: Tensor, positions: Tensor) -> Tensor:
    """One vector per position, Gehring et al. 2017, section 3.1 (https://arxiv.org/abs/1705.03122)."""
    return _combined(options, weights, x, weights["table"][positions + options.offset])


def rotary_frequencies(options: Any, site: Any) -> tuple[Tensor, float]:
    """theta_i = base^(-2 i / dims), and the factor of rotated vectors. Su et al. 2021, section 3.2.2
    (https://arxiv.org/abs/2104.09864).

    linear    theta / s, Chen et al. 2023, equation 4 (https://arxiv.org/abs/2306.15595)
    ntk       base s^(dims / (dims - 2)), Peng et al. 2023, section 3.1 (https://arxiv.org/abs/2309.00071)
    yarn      theta / s below `low` turns in the trained length, theta above `high` turns, a ramp over i in between;
              vectors times 0.1 ln(s) + 1: same paper, sections 3.2 and 3.4, and its code, which rounds the ends of the ramp
              to whole pairs
    llama3    the same, with a ramp over the number of turns (Meta's code of Llama 3.1)
    """
    dims, base = int(options.dims or site.head_dim), float(options.base)
    i = torch.arange(dims // 2, dtype=torch.float64)
    scaling = options.scaling
    if scaling is None:
        return base ** (-2.0 * i / dims), 1.0
    s = scaling.factor
    if scaling.kind == "ntk":
        return (base * s ** (dims / (dims - 2))) ** (-2.0 * i / dims), 1.0
    theta = base ** (-2.0 * i / dims)
    if scaling.kind == "linear":
        return theta / s, 1.0
    trained = scaling.trained_len
    if scaling.kind == "llama3":
        low, high = scaling.low or 1.0, scaling.high or 4.0
        keep = ((trained * theta / (2 * pi) - low) / (high - low)).clamp(0.0, 1.0)
        return keep * theta + (1 - keep) * theta / s, 1.0

    def pair(turns: float) -> float:
        """The pair that makes so many turns in the trained length."""
        return dims * log(int(trained) / (turns * 2 * pi)) / (2 * log(base))

    start, end = pair(scaling.high or 32.0), pair(scaling.low or 1.0)
    if scaling.truncate is not False:
        start, end = float(torch.floor(torch.tensor(start))), float(torch.ceil(torch.tensor(end)))
    start, end = max(start, 0.0), min(end, dims - 1.0)
    if start == end:
        end += 0.001
    stretched = ((i - start) / (end - start)).clamp(0.0, 1.0)
    factor = scaling.attention_factor or (0.1 * log(s) + 1.0 if s > 1 else 1.0)
    return stretched * theta / s + (1 - stretched) * theta, factor


def _rotation(options: Any, site: Any, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, int]:
    """factor cos(m theta_i) and factor sin(m theta_i), (L, dims / 2), and dims."""
    theta, factor = rotary_frequencies(options, site)
    angles = positions.double()[:, None] * theta.to(x.device)
    return (factor * angles.cos()).to(x.dtype), (factor * angles.sin()).to(x.dtype), options.dims or site.head_dim


def rotary_interleaved(options: Any, site: Any, weights: Weights, x: Tensor, positions: Tensor) -> Tensor:
    """Turns the pair (x_2i, x_2i+1) by m theta_i, Su et al. 2021, equation 34 (https://arxiv.org/abs/2104.09864)."""
    cos, sin, dims = _rotation(options, site, x, positions)
    a, b = x[..., 0:dims:2], x[..., 1:dims:2]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([turned, x[..., dims:]], -1)


def rotary_half(options: Any, site: Any, weights: Weights, x: Tensor, positions: Tensor) -> Tensor:
    """Turns the pair (x_i, x_i+dims/2) by m theta_i: the same rotation in the layout of GPT-NeoX."""
    cos, sin, dims = _rotation(options, site, x, positions)
    a, b = x[..., : dims // 2], x[..., dims // 2 : dims]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, x[..., dims:]], -1)


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8 h / H), h = 1 .. H, for a power of two; else those of the power below, then every other one of the power above,
    Press et al. 2021, section 3, and their code (https://arxiv.org/abs/2108.12409)."""
    power = 1
    while 2 * power <= heads:
        power *= 2
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    return slopes + [2.0 ** (-8.0 * h / (2 * power)) for h in range(1, 2 * (heads - power) + 1, 2)]


def alibi(options: Any, site: Any, weights: Weights, query: Tensor, distances: Tensor, scale: float) -> Tensor:
    """-m_h |j - i|, Press et al. 2021, section 3 (https://arxiv.org/abs/2108.12409)."""
    slopes = torch.tensor(alibi_slopes(site.heads), dtype=torch.float64, device=query.device)
    return (-slopes[:, None, None] * distances.abs().double()).to(query.dtype)[None]


def t5_bucket(distance: int, buckets: int, max_distance: int, causal: bool) -> int:
    """The bucket of a distance, Raffel et al. 2019, section 2.1, and their code (https://arxiv.org/abs/1910.10683).

    One half of the buckets is for keys after the query, unless they are hidden. In each half the first half of the buckets is
    for one distance each; the others grow with its logarithm up to `max_distance`.
    """
    start = 0
    if causal:
        far = max(-distance, 0)
    else:
        buckets //= 2
        start, far = buckets if distance > 0 else 0, abs(distance)
    exact = buckets // 2
    if far < exact:
        return start + far
    steps = buckets - exact
    grown = steps * log(far / exact) / log(max_distance / exact)
    step = round(grown)
    if abs(grown - step) > 1e-6:
        step = int(grown)
    elif far**steps * exact**step < max_distance**step * exact**steps:  # in whole numbers, where rounding would decide
        step -= 1
    return start + min(exact + step, buckets - 1)


def relative_t5(options: Any, site: Any, weights: Weights, query: Tensor, distances: Tensor, scale: float) -> Tensor:
    """One value per head and bucket of the distance, added to the score (see `t5_bucket`)."""
    distinct, inverse = torch.unique(distances.cpu(), return_inverse=True)
    rows = [t5_bucket(int(d), options.buckets, options.max_distance, site.causal) for d in distinct]
    table = weights["table"][torch.tensor(rows, device=query.device)]
    return table[inverse.to(query.device)].permute(2, 0, 1)[None]


def relative_shaw(options: Any, site: Any, weights: Weights, query: Tensor, distances: Tensor, scale: float) -> Tensor:
    """scale q_i . a_clip(j - i), Shaw et al. 2018, equation 4 (https://arxiv.org/abs/1803.02155)."""
    k = options.max_distance
    vectors = weights["table"][distances.clamp(-k, k) + k]
    return scale * (query[..., :, None, :] * vectors).sum(-1)


FORMULAS: dict[str, dict[str, Any]] = {
    "none": {},
    "sinusoidal": {"embeddings": sinusoidal},
    "sinusoidal_halves": {"embeddings": sinusoidal_halves},
    "sinusoidal_2d": {"embeddings": sinusoidal_2d},
    "learned": {"embeddings": learned},
    "rotary_half": {"queries_keys": rotary_half},
    "rotary_interleaved": {"queries_keys": rotary_interleaved},
    "alibi": {"scores": alibi},
    "relative_t5": {"scores": relative_t5},
    "relative_shaw": {"scores": relative_shaw},
}
