"""Batches of images: bytes to normalised numbers, moved at random in training.

    x = (moved(v / 255) - mean) / std

`moved` rotates an image about its centre and shifts it, with bilinear interpolation and 0 outside. Angle and shift of an image
depend on (seed, epoch, number of the image) alone, so that a step is the same wherever and whenever it is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..recipe import Recipe
from ..slots.node import ImageRule
from .corpus import Corpus
from .roles import Roles
from .tasks import Batch

STREAM = 1
"""Distinguishes these random numbers from others with the same seed."""


@dataclass(frozen=True)
class Normalisation:
    """The mean and the standard deviation of each channel, or one for all, of values from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, H, W)."""
        mean, std = (
            torch.tensor(statistic, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
            for statistic in (self.mean, self.std)
        )
        return (images - mean) / std


@dataclass(frozen=True)
class ImageTask:
    """Labelled images for a model. `shift` is in pixels, `rotation` in degrees."""

    kind: ClassVar[str] = "images"
    roles: Roles
    rule: ImageRule
    normalisation: Normalisation
    shift: float
    rotation: float
    seed: int

    def batch(self, corpus: Corpus, numbers: Sequence[int], draw: np.random.Generator, epoch: int = 0) -> Batch:
        """The batch of some images of a corpus; those of an epoch, counted from 1, are moved at random."""
        shape = (self.rule.channels, self.rule.size, self.rule.size)
        rows = corpus.rows("target", numbers)
        if any(len(row) != math.prod(shape) for row in rows):
            raise corpus.damaged(f"an image has not the {math.prod(shape):,} bytes that the model takes")
        bytes_ = np.stack([row.reshape(shape) for row in rows])
        images = torch.from_numpy(bytes_).to(torch.float32) / 255
        if epoch and (self.shift or self.rotation):
            images = moved(images, *self._moves(numbers, epoch))
        labels = torch.from_numpy(corpus.numbers["label"][list(numbers)].astype(np.int64))
        return Batch({self.roles.target: self.normalisation(images)}, {}, labels, 0, len(labels))

    def _moves(self, numbers: Sequence[int], epoch: int) -> tuple[Tensor, Tensor]:
        """Angles (B,) in radians and shifts (B, 2) in pixels, uniform up to the limits."""
        drawn = np.stack(
            [
                np.random.Generator(np.random.PCG64([self.seed, epoch, int(number), STREAM])).uniform(-1, 1, 3)
                for number in numbers
            ]
        )
        angles = torch.from_numpy(drawn[:, 0] * math.radians(self.rotation)).float()
        return angles, torch.from_numpy(drawn[:, 1:] * self.shift).float()


def moved(images: Tensor, angles: Tensor, shifts: Tensor) -> Tensor:
    """Images (B, C, S, S), rotated by angles (B,) in radians, counterclockwise as they are shown, then shifted by (B, 2) pixels
    to the right and down."""
    cos, sin = angles.cos(), angles.sin()
    # Where each pixel comes from: shift back, then rotate back, in units of half an image.
    x, y = (2 * shifts / images.shape[-1]).unbind(1)
    rows = [torch.stack([cos, -sin, sin * y - cos * x], 1), torch.stack([sin, cos, -sin * x - cos * y], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def image_task(recipe: Recipe, roles: Roles, rule: ImageRule) -> ImageTask:
    """The task of a recipe of images."""
    options = recipe.data.options
    return ImageTask(roles, rule, Normalisation(options.mean, options.std), options.shift, options.rotation, recipe.seed)
