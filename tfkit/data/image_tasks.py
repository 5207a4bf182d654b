"""Batches of images: bytes to normalised numbers, moved at random in training.

    x = (moved(v / 255) - mean) / std

`moved` rotates an image about its centre and shifts it, with bilinear interpolation and 0 outside. Angle and shift of an image
depend on (seed, epoch, number of the image) alone, so that a step is the same wherever and whenever it is computed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, ValidationError
from torch import Tensor
from torch.nn import functional

from ..errors import Diagnostic, InputError
from ..files import FileModel, read_model, refusals
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


IMAGES = "images.json"


class ImageFacts(FileModel):
    """A pixel v of 0 .. 255 becomes (v / 255 - mean) / std; one number for all channels, or one for each."""

    mean: Annotated[list[float], Field(min_length=1)]
    std: Annotated[list[Annotated[float, Field(gt=0.0)]], Field(min_length=1)]


def image_texts(recipe: Recipe) -> dict[str, str]:
    """The normalisation of a recipe of images by file name; nothing for text."""
    if recipe.data.kind != "images":
        return {}
    return image_facts_text(list(recipe.data.options.mean), list(recipe.data.options.std))


def image_facts_text(mean: list[float], std: list[float]) -> dict[str, str]:
    """A normalisation by file name. Raises InputError where it is none."""
    try:
        return {IMAGES: ImageFacts(mean=mean, std=std).model_dump_json() + "\n"}
    except ValidationError as error:
        raise InputError(
            [Diagnostic("TFK116", f"the normalisation of images: {reason}") for reason in refusals(error)]
        ) from None


def read_image_facts(directory: Path) -> ImageFacts:
    """The normalisation of the classifier in a directory. Raises InputError where there is none, StoreError where the file is
    damaged."""
    path = directory / IMAGES
    if not os.path.lexists(path):
        message = f"{path} cannot be read: No such file or directory"
        raise InputError(Diagnostic("TFK116", message, "name a classifier of images that `tfkit train` has made"))
    return read_model(path, ImageFacts)
