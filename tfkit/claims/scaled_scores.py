"""Scores of random queries and keys of D features have variance D; divided by sqrt(D), variance 1 (arXiv:1706.03762, 3.2.1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .claim import Measured, Series, Summary

if TYPE_CHECKING:
    from torch import Tensor

KEYS = (64, 512)
PLAIN, SCALED = "q.k", "q.k / sqrt(D)"
VARIANCE = "variance"
ENTROPY = f"entropy / log K, {KEYS[0]} keys"
JACOBIAN = {keys: f"norm of the softmax's Jacobian, {keys} keys" for keys in KEYS}
PAPER = 64
"""D of a head of the paper's models."""


def measure(seed: int, tiny: bool) -> Series:
    import torch

    generator = torch.Generator().manual_seed(seed)
    measured: Series = {name: {PLAIN: {}, SCALED: {}} for name in (VARIANCE, ENTROPY, *JACOBIAN.values())}
    for width in (4, PAPER) if tiny else (4, 16, PAPER, 256, 1024):
        query, key = (
            torch.randn(512, width, generator=generator, device="cpu"),
            torch.randn(max(KEYS), width, generator=generator, device="cpu"),
        )
        for name, scale in ((PLAIN, 1.0), (SCALED, 1 / math.sqrt(width))):
            scores = scale * query @ key.T
            measured[VARIANCE][name][width] = float(scores.var())
            for keys in KEYS:
                p = scores[:, :keys].softmax(1)
                measured[JACOBIAN[keys]][name][width] = float(jacobian_norm(p).mean())
            p = scores[:, : KEYS[0]].softmax(1)
            measured[ENTROPY][name][width] = float(-(p * p.clamp_min(1e-30).log()).sum(1).mean()) / math.log(KEYS[0])
    return measured


def jacobian_norm(p: Tensor) -> Tensor:
    """The Frobenius norm of diag(p) - p p^T, the derivative of softmax, by row. Its square is |p|^2 - 2 sum p^3 + |p|^4."""
    square = p.square().sum(1)
    return (square - 2 * p.pow(3).sum(1) + square.square()).clamp_min(0).sqrt()


def verdict(measured: Summary) -> str:
    """Variance and saturation, and the paper's reason: that the gradient of the softmax is smaller without the scale."""
    plain, scaled = measured[VARIANCE][PLAIN], measured[VARIANCE][SCALED]
    widest = max(plain)
    agrees = all(abs(plain[D][0] / D - 1) < 0.2 and abs(scaled[D][0] - 1) < 0.2 for D in plain)
    entropy = measured[ENTROPY]
    sharper = all(entropy[PLAIN][D][3] < entropy[SCALED][D][2] for D in plain)
    sentences = [
        f"Variance: the data {'agree' if agrees else 'do not agree'}; at D = {widest:g} it is {plain[widest][0]:.4g} without"
        f" and {scaled[widest][0]:.3g} with the scale. Saturation: the data {'agree' if sharper else 'do not agree'}; there the"
        f" unscaled softmax has {100 * entropy[PLAIN][widest][0]:.1f} % of the largest entropy, the scaled one"
        f" {100 * entropy[SCALED][widest][0]:.0f} %."
    ]
    for keys, quantity in JACOBIAN.items():
        norms = measured[quantity]
        smaller = [D for D in plain if norms[PLAIN][D][3] < norms[SCALED][D][2]]
        word = "the data agree" if PAPER in smaller else "not seen"
        sentences.append(
            f"The paper's reason, a smaller gradient of the softmax, with {keys} keys at the paper's D = {PAPER}: {word};"
            f" the norm is {norms[PLAIN][PAPER][0]:.3f} unscaled and {norms[SCALED][PAPER][0]:.3f} scaled. It is smaller"
            f" unscaled at {'D = ' + ', '.join(f'{D:g}' for D in smaller) if smaller else 'no D'}."
        )
    return " ".join(sentences)


SCALED_SCORES = Measured(
    "Without 1/sqrt(D), the variance of scores is D, the softmax saturates and its gradient is small",
    "Scores of random queries and keys of D features have variance D; divided by sqrt(D), variance 1"
    " (arXiv:1706.03762, 3.2.1).",
    "D",
    measure,
    verdict,
    3,
)
