"""The frequencies of rotary positions, and their scaling to texts `factor` = s times longer than the training texts.

    f_i = base^(-2i/dims), i = 0 .. dims/2 - 1                       Su et al. 2021, https://arxiv.org/abs/2104.09864

    linear    f_i / s                                                Chen et al. 2023, https://arxiv.org/abs/2306.15595
    ntk       base * s^(dims/(dims-2)) in place of base              the last frequency becomes f / s, the first stays
    yarn      f_i ((1 - k_i) / s + k_i), queries and keys times 0.1 ln(s) + 1     Peng et al. 2023, https://arxiv.org/abs/2309.00071
    llama3    f_i ((1 - k_i) / s + k_i)                              https://github.com/meta-llama/llama-models

Frequency i makes r_i = trained_len f_i / (2 pi) turns within the trained length. k_i is 0 where r_i <= low, 1 where
r_i >= high, and linear between them: in r_i (llama3), or in i (yarn; the ends are whole i unless `truncate` is false). NTK
scaling is static: a scaling that follows the text length would not match the keys that are already in a cache.
"""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch
from torch import Tensor

from .entries_rotary import Scaling


def frequencies(base: float, dims: int, scaling: Scaling | None, device: torch.device) -> Tensor:
    """The frequency of each pair of features, (dims/2,) float64, in radians per position."""
    index = torch.arange(dims // 2, dtype=torch.float64, device=device)
    if scaling is None:
        return _plain(base, dims, index)
    if scaling.kind == "linear":
        return _plain(base, dims, index) / scaling.factor
    if scaling.kind == "ntk":
        return _plain(base * scaling.factor ** (dims / (dims - 2)), dims, index)
    original = _plain(base, dims, index)
    kept = _kept_by_index(base, dims, scaling, index) if scaling.kind == "yarn" else _kept_by_turns(scaling, original)
    return original * ((1 - kept) / scaling.factor + kept)


def attention_factor(scaling: Scaling | None) -> float:
    """The factor of rotated queries and keys."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    return scaling.attention_factor or 0.1 * log(scaling.factor) + 1.0


def _plain(base: float, dims: int, index: Tensor) -> Tensor:
    return base ** (-2.0 / dims * index)


def _kept_by_turns(scaling: Scaling, original: Tensor) -> Tensor:
    low, high = scaling.turns()
    turns = (scaling.trained_len or 0) * original / (2 * pi)
    return ((turns - low) / (high - low)).clamp(0, 1)


def _kept_by_index(base: float, dims: int, scaling: Scaling, index: Tensor) -> Tensor:
    def index_at(turns: float) -> float:
        return dims * log((scaling.trained_len or 0) / (2 * pi * turns)) / (2 * log(base))

    low, high = scaling.turns()
    first, last = index_at(high), index_at(low)
    if scaling.truncate is not False:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    # If both ends are equal, the ramp is a step, and any width up to one index gives the same values.
    return 1 - ((index - first) / (last - first or 1)).clamp(0, 1)
