"""The known norms against their equations, one vector at a time in plain Python:

layer_norm   weight (x - mean) / sqrt(variance + eps) + bias       https://arxiv.org/abs/1607.06450, equation 4
rms_norm     weight x / sqrt(mean square + eps)                    https://arxiv.org/abs/1910.07467, equation 4
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..attention.bound import gamma
from .example import SINGLE, LawExample
from .law import Law, known_as
from .norm_use import FEW, draw, numbers
from .options import shared

Numbers = list[float]


def layer_norm(x: Numbers, weights: dict[str, Numbers], options: Any) -> tuple[Numbers, Numbers]:
    """The vector, and the size of what was added up for each of its numbers."""
    mean = math.fsum(x) / len(x)
    variance = math.fsum((number - mean) ** 2 for number in x) / len(x)
    deviation = math.sqrt(variance + options.eps)
    weight, bias = weights.get("weight", [1.0] * len(x)), weights.get("bias", [0.0] * len(x))
    normed = [w * (number - mean) / deviation for number, w in zip(x, weight, strict=True)]
    largest = max(map(abs, x))
    grown = [abs(w) * (1 + largest / deviation) ** 2 for w in weight]
    return [n + b for n, b in zip(normed, bias, strict=True)], [
        abs(n) + abs(b) + g for n, b, g in zip(normed, bias, grown, strict=True)
    ]


def rms_norm(x: Numbers, weights: dict[str, Numbers], options: Any) -> tuple[Numbers, Numbers]:
    """The vector, and the size of its numbers."""
    root = math.sqrt(math.fsum(number * number for number in x) / len(x) + options.eps)
    weight = weights.get("weight", [0.0 if options.unit_offset else 1.0] * len(x))
    scale = [1.0 + w if options.unit_offset else w for w in weight]
    normed = [w * number / root for number, w in zip(x, scale, strict=True)]
    return normed, [(1.0 + abs(w)) * abs(number) / root for number, w in zip(x, weight, strict=True)]


def _evaluated(form: Callable[[Numbers, dict[str, Numbers], Any], tuple[Numbers, Numbers]]) -> Callable[[LawExample], float]:
    def evaluate(example: LawExample) -> float:
        at, options = example.at, shared(example)
        module: nn.Module = example.built(at["width"])
        weights = {name: p.detach().double().tolist() for name, p in module.named_parameters()}
        # Small vectors show whether eps is in the right place.
        x = torch.cat((numbers(example, at["tokens"], at["width"]), example.normal(1, at["width"]) * 2.0**-9))
        found = [form(row, weights, options) for row in x.double().tolist()]
        want = torch.tensor([value for value, _ in found], dtype=torch.float64, device=example.device)
        size = torch.tensor([value for _, value in found], dtype=torch.float64, device=example.device)
        bound = (
            3 * example.unit * (want.abs() + (size if example.unit > 2.0**-24 else 0))
            + 2 * gamma(at["width"] + 16, SINGLE) * size
            + example.tiny
        )
        return example.within("a vector is not normed as the equation says", module(x), want, bound)

    return evaluate


LAWS = (
    Law("layer_norm_form", "the equation of layer normalisation", known_as("layer_norm"), draw, _evaluated(layer_norm), FEW),
    Law(
        "rms_norm_form", "the equation of root mean square normalisation", known_as("rms_norm"), draw, _evaluated(rms_norm), FEW
    ),
)
