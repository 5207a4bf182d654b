"""Images and labels from files: two idx files, or a folder with a sub-folder of PNG and JPEG files for each label.

A file of MNIST's idx format (http://yann.lecun.com/exdb/mnist/), plain or gzip, is

    0  0  type  dimensions  size 1 (4 bytes, the highest first)  ..  size n  bytes in row-major order

The type is 8, unsigned bytes. Images are (N, rows, columns), labels are (N,).

Files are not trusted: no link is followed, an image is decoded only if its header has the size and the colours of the model,
and a damaged one is an error that names it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ..distribution import install_line
from ..errors import BuildError, Diagnostic, InputError
from ..files import open_regular, read_bytes
from ..recipe import Recipe
from ..slots.node import ImageRule
from .labels import label_fault
from .unpacked import FREE_BYTES, MAX_RATIO, unpacked

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
IDX_UNSIGNED_BYTES = 8
MAX_IMAGE = 1 << 26
"""The most bytes of one image of an idx file."""
MAX_COUNT = 1 << 31
IDX_DIMENSIONS = {1: "labels", 3: "images"}


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


def idx_shape(path: str, dimensions: int) -> tuple[int, ...]:
    """The sizes of a file with this number of dimensions. Raises InputError."""
    with _opened(path) as (file, limit):
        return _shape(file, path, dimensions, limit)


def idx_labels(path: str) -> list[str]:
    """The labels of a file, as text. Raises InputError."""
    with _opened(path) as (file, limit):
        (count,) = _shape(file, path, 1, limit)
        data = _exactly(file, path, count, 0, count)
        _ends(file, path, count)
    names = [str(label) for label in range(256)]
    return [names[label] for label in data]


def idx_images(path: str) -> Iterator[bytes]:
    """The pixels of every image of a file, row by row. Raises InputError."""
    with _opened(path) as (file, limit):
        count, rows, columns = _shape(file, path, 3, limit)
        size = rows * columns
        for number in range(count):
            yield _exactly(file, path, size, number * size, count * size)
        _ends(file, path, count * size)


@contextmanager
def _opened(path: str) -> Iterator[tuple[BinaryIO, int]]:
    """The file, unpacked, and the most bytes that it may hold for its size."""
    try:
        with open_regular(path) as raw:
            size = os.fstat(raw.fileno()).st_size
            if Path(path).suffix == ".gz":
                yield unpacked(raw), FREE_BYTES + MAX_RATIO * size
            else:
                yield raw, size
    except OSError as reason:
        raise unreadable(path, getattr(reason, "strerror", None) or str(reason)) from None


def unreadable(path: str, reason: str, fix: str = "") -> InputError:
    """The error of a file of images or labels that cannot be read."""
    return InputError(Diagnostic("TFK122", f"{path} cannot be read: {reason}", fix))


def _shape(file: BinaryIO, path: str, dimensions: int, limit: int) -> tuple[int, ...]:
    head = file.read(4)
    wanted = IDX_DIMENSIONS[dimensions]
    if len(head) < 4 or head[:2] != b"\0\0":
        raise unreadable(path, "it is no idx file", f"name an idx file of {wanted}, plain or `.gz`")
    if head[2] != IDX_UNSIGNED_BYTES:
        raise unreadable(path, f"its values have type 0x{head[2]:02x}, and unsigned bytes, 0x08, are expected")
    if head[3] != dimensions:
        kind = IDX_DIMENSIONS.get(head[3], "other data")
        message = f"it has {head[3]} dimensions, which is an idx file of {kind}, and {wanted} have {dimensions}"
        raise unreadable(path, message, "are the two files exchanged?" if head[3] in IDX_DIMENSIONS else "")
    sizes = _exactly(file, path, 4 * dimensions, 4, 4 + 4 * dimensions)
    shape = tuple(int.from_bytes(sizes[at : at + 4], "big") for at in range(0, 4 * dimensions, 4))
    if 0 in shape or shape[0] > MAX_COUNT or prod(shape[1:]) > MAX_IMAGE:
        expected = f"at least 1 image, of 1 to {MAX_IMAGE:,} bytes each, is expected"
        raise unreadable(path, f"its header says {' x '.join(f'{size:,}' for size in shape)}; {expected}")
    if (whole := prod(shape)) > limit:
        message = f"its header says {whole:,} bytes, and a file of this size holds at most {limit:,}"
        raise unreadable(path, message, "is the download complete? unpack a file that packs more than 100 times")
    return shape


def _exactly(file: BinaryIO, path: str, count: int, start: int, whole: int) -> bytes:
    """`count` bytes; for a shorter file an error with both numbers, also where it is packed and unpacks to fewer."""
    data = file.read(count)
    if len(data) < count:
        raise unreadable(path, f"it ends after {start + len(data):,} of {whole:,} bytes", "is the download complete?")
    return data


def _ends(file: BinaryIO, path: str, whole: int) -> None:
    if file.read(1):
        raise unreadable(path, f"it goes on after the {whole:,} bytes that its header says")
