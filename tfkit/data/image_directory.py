"""The normalisation of images in the directory of a model, `images.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ..errors import Diagnostic, InputError
from ..files import FileModel, read_model
from ..recipe import Recipe

IMAGES = "images.json"


class ImageFacts(FileModel):
    """A pixel v of 0 .. 255 becomes (v / 255 - mean) / std; one number for all channels, or one for each."""

    mean: Annotated[list[float], Field(min_length=1)]
    std: Annotated[list[Annotated[float, Field(gt=0.0)]], Field(min_length=1)]


def image_texts(recipe: Recipe) -> dict[str, str]:
    """The normalisation of a recipe of images by file name; nothing for text."""
    if recipe.data.kind != "images":
        return {}
    options = recipe.data.options
    return {IMAGES: ImageFacts(mean=list(options.mean), std=list(options.std)).model_dump_json() + "\n"}


def read_image_facts(directory: Path) -> ImageFacts:
    """The normalisation of the classifier in a directory. Raises InputError where there is none, StoreError where the file is
    damaged."""
    path = directory / IMAGES
    if not os.path.lexists(path):
        message = f"{path} cannot be read: No such file or directory"
        raise InputError(Diagnostic("TFK116", message, "name a classifier of images that `tfkit train` has made"))
    return read_model(path, ImageFacts)
