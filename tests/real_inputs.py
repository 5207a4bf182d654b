"""Specs of small models of images and of frames, and their equations as plain loops over Python floats."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

HEAD = """
tfkit: 1
name: real
defaults: {d_model: 12}
nodes:
"""
AUDIO_HEAD = "tfkit: 1\nname: real\nnodes:\n"
CLIP = """
  text:   {kind: tokens, vocab_size: 11}
  words:  {kind: pool, input: text, take: mean}
  image:  {kind: patches, size: 6, patch: 3}
  pixels: {kind: pool, input: image, take: mean}
  match:  {kind: similarity, inputs: [words, pixels]}
outputs: [match, words, pixels]
"""


def image_spec(**options: Any) -> str:
    written = {"kind": "patches", "size": 6, "patch": 2, "channels": 2, **options}
    return f"{HEAD}  image: {{{_flow(written)}}}\noutputs: [image]\n"


def audio_spec(*convolutions: dict[str, Any], **options: Any) -> str:
    items = ", ".join(f"{{{_flow(each)}}}" for each in convolutions)
    more = "".join(f", {name}: {value}" for name, value in options.items())
    nodes = (
        f"  audio: {{kind: features, size: 5}}\n  frames: {{kind: convolutions, input: audio, convolutions: [{items}]{more}}}\n"
    )
    return f"{AUDIO_HEAD}{nodes}outputs: [frames]\n"


def _flow(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in options.items())


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def patches_by_loops(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(B, C, H, W), (M, C, P, P) -> (B, N, M): one product at a time."""
    B, C, H, W = images.shape
    M, _, P, _ = weight.shape
    pixels, w = images.tolist(), weight.tolist()
    b_m = [0.0] * M if bias is None else bias.tolist()
    made = []
    for b in range(B):
        rows = []
        for r in range(H // P):
            for c in range(W // P):
                vector = []
                for m in range(M):
                    total = b_m[m]
                    for k in range(C):
                        for y in range(P):
                            for x in range(P):
                                total += w[m][k][y][x] * pixels[b][k][r * P + y][c * P + x]
                    vector.append(total)
                rows.append(vector)
        made.append(rows)
    return torch.tensor(made, dtype=torch.float64)


def sinusoid_2d(row: int, column: int, width: int, base: float, inclusive: bool) -> list[float]:
    """p(row, column) by the equation of `sinusoidal_2d`."""
    count = width // 4
    waves = [base ** -(i / (count - 1 if inclusive else count)) for i in range(count)]
    return [f(at * wave) for at in (column, row) for f in (math.sin, math.cos) for wave in waves]


def convolved_by_loops(x: list[list[float]], weight: Tensor, bias: Tensor, stride: int) -> list[list[float]]:
    """One sequence (L, M) -> (ceil(L / s), M'), before the activation; zeros outside."""
    L, w, b = len(x), weight.tolist(), bias.tolist()
    width = len(w[0][0])
    made = []
    for start in range(0, L, stride):
        vector = []
        for m in range(len(w)):
            total = b[m]
            for k in range(width):
                at = start + k - (width - 1) // 2
                if 0 <= at < L:
                    total += sum(w[m][i][k] * x[at][i] for i in range(len(x[at])))
            vector.append(total)
        made.append(vector)
    return made


def bicubic_by_loops(table: list[list[float]], rows: int, columns: int) -> list[list[float]]:
    """A grid at another resolution by Keys' kernel with a = -3/4, pixel centres aligned, the border repeated."""

    def kernel(t: float) -> float:
        t, a = abs(t), -0.75
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0

    def terms(count: int, wanted: int, at: int) -> list[tuple[int, float]]:
        centre = (at + 0.5) * count / wanted - 0.5
        first = math.floor(centre) - 1
        return [(min(max(place, 0), count - 1), kernel(centre - place)) for place in range(first, first + 4)]

    return [
        [
            sum(
                down * across * table[y][x]
                for y, down in terms(len(table), rows, row)
                for x, across in terms(len(table[0]), columns, column)
            )
            for column in range(columns)
        ]
        for row in range(rows)
    ]
