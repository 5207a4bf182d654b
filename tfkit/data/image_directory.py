"""The normalisation of images in the directory of a model, `images.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from ..errors import Diagnostic, InputError
from ..files import FileModel, read_model, refusals
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
