"""How far rounding alone may change the result of a computation, measured by disturbing it.

A bound a priori multiplies from layer to layer until it says nothing. Here a computation is run again while every operation
in it, forward and backward, has Gaussian noise g_k of the size b_k of its own rounding error added (see `noise`). To first
order the result y moves by J g, where J is what the rest of the computation makes of a disturbance, and

    sum_k |J_ck| b_k  <=  sqrt(N) (sum_k J_ck^2 b_k^2)^(1/2)  =  sqrt(N) std (J g)_c           (Cauchy-Schwarz)

bounds every rounding error that N elements within their b_k can cause together. The deviation is estimated from a few float64
runs with noise of unit roundoff 2^-33 and scaled to that of the dtype in question (Monte Carlo arithmetic: Parker 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from tfkit import Model

from .noise import PROBE, Noise
from .site_noise import disturbed_sites

RUNS = 4
APART = 2.0
"""Two correct results: each may be off by as much."""


def rounding(
    compute: Callable[[], Sequence[Tensor]], unit: float = 2.0**-53, model: Model | None = None, runs: int = RUNS
) -> list[Tensor]:
    """For each tensor that `compute` gives, how far a correct program for the same may be off, element by element.

    `compute` works in float64 and gives the same at every call; operations of its backward pass count as well. `unit` is the
    unit roundoff of the dtype that is evaluated. The attention sites of `model`, which `compute` runs, are disturbed by what
    the contract allows there. Two correct results differ by no more than `APART` times this.
    """
    plain = [tensor.detach().clone() for tensor in compute()]
    spreads = [torch.zeros_like(tensor) for tensor in plain]
    elements = 0
    for seed in range(runs):
        noise = Noise(seed)
        with noise, disturbed_sites(model, noise) if model is not None else nullcontext():
            moved = compute()
        elements = noise.elements
        for spread, tensor, before in zip(spreads, moved, plain, strict=True):
            spread += ((tensor.detach() - before) * (unit / PROBE)).square() / runs
    # An element that these few runs happened not to move is given what its tensor shows on the whole.
    return [elements**0.5 * torch.maximum(spread.sqrt(), spread.mean().sqrt()) + 2.0**-1000 for spread in spreads]
