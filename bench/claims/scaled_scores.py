"""Scores of random queries and keys of D features have variance D; divided by sqrt(D), variance 1 (arXiv:1706.03762, 3.2.1)."""

from __future__ import annotations

import math

import torch
from claim import Claim, Measured, Summary, main

KEYS = 64


def measure(seed: int, tiny: bool) -> Measured:
    generator = torch.Generator().manual_seed(seed)
    found: Measured = {name: {"q.k": {}, "q.k / sqrt(D)": {}} for name in ("variance", "entropy / log K", "gradient norm")}
    for width in (4, 64) if tiny else (4, 16, 64, 256, 1024):
        query, key = torch.randn(512, width, generator=generator), torch.randn(KEYS, width, generator=generator)
        for name, scale in (("q.k", 1.0), ("q.k / sqrt(D)", 1 / math.sqrt(width))):
            scores = scale * query @ key.T
            p = scores.softmax(1)
            jacobian = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)  # of softmax
            found["variance"][name][width] = float(scores.var())
            found["entropy / log K"][name][width] = float(-(p * p.clamp_min(1e-30).log()).sum(1).mean()) / math.log(KEYS)
            found["gradient norm"][name][width] = float(jacobian.flatten(1).norm(dim=1).mean())
    return found


def verdict(found: Summary) -> str:
    plain, scaled = (found["variance"][name] for name in ("q.k", "q.k / sqrt(D)"))
    widest = max(plain)
    agrees = all(abs(plain[D][0] / D - 1) < 0.2 and abs(scaled[D][0] - 1) < 0.2 for D in plain)
    entropy = found["entropy / log K"]["q.k"][widest][0]
    return (
        f"The data {'agree' if agrees else 'do not agree'}: at D = {widest:g} the variance is {plain[widest][0]:.4g} without"
        f" and {scaled[widest][0]:.3g} with the scale. Unscaled, the softmax has {100 * entropy:.1f} % of the largest entropy."
    )


CLAIM = Claim("Without 1/sqrt(D), the variance of scores is D and the softmax saturates", "D", measure, verdict)
if __name__ == "__main__":
    main(CLAIM)
