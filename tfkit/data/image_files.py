"""Images and labels from files: two idx files, or a folder with a sub-folder of PNG and JPEG files for each label.

Files are not trusted: no link is followed, an image is decoded only if its header has the size and the colours of the model,
and a damaged one is an error that names it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..distribution import install_line
from ..errors import BuildError, Diagnostic, InputError
from ..files import read_bytes
from ..recipe import Recipe
from ..slots.node import ImageRule
from .idx_files import idx_images, idx_labels, idx_shape, unreadable
from .labels import label_fault

Pixels = npt.NDArray[np.uint8]
SUFFIXES = (".png", ".jpg", ".jpeg")
MAX_FILE = 64 << 20
"""The most bytes of a PNG or JPEG file."""
MAX_METADATA = 4 << 20
"""Bytes of a file beside its pixels. The decoder reads chunks and markers one by one, in Python."""
MODES = {1: "L", 3: "RGB"}
"""Pillow's name of 8-bit images, by number of channels."""
COLOURS = {"L": "8-bit grey", "RGB": "8-bit RGB", "RGBA": "RGB with transparency", "P": "a palette", "1": "black and white",
           "LA": "grey with transparency", "I;16": "16-bit grey", "CMYK": "CMYK"}  # fmt: skip


@dataclass(frozen=True)
class LabelledFiles:
    """The label of every image; a function that reads the images in the same order, as (C, H, W), with their names; and one
    that gives the place of a label."""

    labels: list[str]
    images: Callable[[], Iterator[tuple[str, Pixels]]]
    source: Callable[[int], str]


def labelled_files(images: str, labels: str | None, recipe: Recipe, rule: ImageRule, keys: Mapping[str, str]) -> LabelledFiles:
    """The images of two idx files, or of a folder without a file of labels. `keys` are the options of the recipe that name the
    files. Raises InputError if one cannot be read, or the two do not fit each other or the model."""
    if os.path.isdir(images):
        if labels is not None:
            message = f"{images} is a folder, whose sub-folders are the labels"
            raise InputError(recipe.diagnostic("TFK108", f"data.{keys['labels']}", message, "remove it"))
        return _folder(images, rule)
    if labels is None:
        fix = f"name the idx file of its labels, or a folder as `data.{keys['images']}`"
        raise InputError(recipe.diagnostic("TFK108", "data", f"the recipe names no file for `data.{keys['labels']}`", fix))
    count, rows, columns = idx_shape(images, 3)
    _check_size(images, (rows, columns), 1, "8-bit grey", rule)
    image_labels = idx_labels(labels)
    if len(image_labels) != count:
        message = f"{images} has {count:,} images, {labels} {len(image_labels):,} labels"
        raise InputError(Diagnostic("TFK102", message, "are they of one data set?"))

    def read() -> Iterator[tuple[str, Pixels]]:
        for number, data in enumerate(idx_images(images)):
            yield f"{images}, image {number}", np.frombuffer(data, np.uint8).reshape(1, rows, columns)

    return LabelledFiles(image_labels, read, lambda number: f"{labels}, label {number}")


def _folder(folder: str, rule: ImageRule) -> LabelledFiles:
    names: list[tuple[str, str]] = []
    for label in _names(folder):
        inner = os.path.join(folder, label)
        if fault := label_fault(label):
            raise unreadable(inner, fault, "rename the folder")
        if os.path.islink(inner) or not os.path.isdir(inner):
            raise unreadable(inner, "a sub-folder for each label is expected here", "move it into a sub-folder, or away")
        for name in _names(inner):
            path = os.path.join(inner, name)
            if Path(name).suffix.lower() not in SUFFIXES:
                raise unreadable(path, "it is neither PNG nor JPEG by its name", f"files end in {', '.join(SUFFIXES)}")
            names.append((label, path))
    if not names:
        raise unreadable(folder, "it has no sub-folder with images", "put the images of each label into a sub-folder")

    def read() -> Iterator[tuple[str, Pixels]]:
        for _, path in names:
            yield path, read_image(path, rule)

    return LabelledFiles([label for label, _ in names], read, lambda number: names[number][1])


def _names(folder: str) -> list[str]:
    """What is in a folder, sorted; hidden files are ignored."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as reason:
        raise unreadable(folder, reason.strerror or str(reason)) from None


def read_image(path: str, rule: ImageRule) -> Pixels:
    """The pixels (C, H, W) of a PNG or JPEG file. Raises InputError where it cannot be read or does not fit the model."""
    if find_spec("PIL") is None:
        raise BuildError(Diagnostic("TFK097", "this needs the package pillow, not installed here", install_line("images")))
    from PIL import Image, UnidentifiedImageError

    try:
        data = read_bytes(path, MAX_FILE, links=False)
        limit = MAX_METADATA + 8 * rule.size**2
        message = f"it has {len(data):,} bytes, and at most {limit:,} are read for an image of {rule.size} x {rule.size} pixels"
        too_large = unreadable(path, message, "resize the image, or remove its metadata")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Image.open(BytesIO(data[:limit]), formats=("PNG", "JPEG")) as image:
                channels = len(image.getbands())
                colours = COLOURS.get(image.mode, f"of mode {image.mode}")
                known = channels if image.mode == MODES.get(channels) else 0
                _check_size(path, (image.height, image.width), known, colours, rule)
                if len(data) > limit:
                    raise too_large
                pixels = np.asarray(image, np.uint8)
    except InputError:
        raise
    except UnidentifiedImageError:
        raise (too_large if len(data) > limit else unreadable(path, "it is neither a PNG nor a JPEG file")) from None
    except OSError as reason:
        raise unreadable(path, reason.strerror or " ".join(str(reason).split())) from None
    except Exception as reason:  # a damaged file raises many kinds of errors inside the decoders
        raise unreadable(path, f"{type(reason).__name__}: {' '.join(str(reason).split())}") from None
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _check_size(path: str, size: tuple[int, int], channels: int, colours: str, rule: ImageRule) -> None:
    """Raises InputError unless an image has the size and the colours of the model."""
    if size != (rule.size, rule.size):
        message = f"{path} is {size[0]} x {size[1]} pixels, the model takes {rule.size} x {rule.size}"
        raise InputError(Diagnostic("TFK123", message, "resize or crop the images, or write their `size` in the spec"))
    if channels != rule.channels:
        wanted = COLOURS.get(MODES.get(rule.channels, ""), f"{rule.channels} channels")
        message = f"{path} is {colours}, the model takes {wanted} (`channels: {rule.channels}`)"
        raise InputError(Diagnostic("TFK123", message, "convert the images, or write their `channels` in the spec"))
