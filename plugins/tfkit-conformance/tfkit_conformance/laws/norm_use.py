"""The vectors that norms are checked on."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from .example import LawExample
from .part import PartUnderTest, Structure

SHRINKS = {"tokens": 1, "width": 2, "scale": 0, "shift": 0}
FEW = SHRINKS | {"width": 4}


def draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """Few and short vectors, of various size and mean: some laws need a Jacobian."""
    return {
        "width": random.choice((4, 5, 7, 8, 12, 16, 24, 33)), "tokens": random.choice((1, 2, 3)),
        "scale": random.choice((0, 0, 1, 3, -2)), "shift": random.choice((0, 0, 1, 2)),
    }  # fmt: skip


def draw_many(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """More than one token."""
    return draw_wide(subject, options, random) | {"tokens": random.choice((2, 3, 5, 9))}


def draw_wide(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """As wide as models are."""
    return draw(subject, options, random) | {"width": random.choice((2, 4, 7, 16, 33, 64, 257, 768))}


def numbers(example: LawExample, *shape: int) -> Tensor:
    """2^scale (z + shift) with z normally distributed."""
    drawn = example.normal(*shape, dtype=torch.float64)
    shift, power = float(example.at["shift"]), float(example.at["scale"])
    return ((drawn + shift) * float(2.0**power)).to(example.dtype)
