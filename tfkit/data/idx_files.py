"""Files of MNIST's idx format, plain or gzip: http://yann.lecun.com/exdb/mnist/

    0  0  type  dimensions  size 1 (4 bytes, the highest first)  ..  size n  bytes in row-major order

The type is 8, unsigned bytes. Images are (N, rows, columns), labels are (N,).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import BinaryIO

from ..errors import Diagnostic, InputError
from ..files import open_regular
from .unpacked import FREE_BYTES, MAX_RATIO, unpacked

UNSIGNED_BYTES = 8
MAX_IMAGE = 1 << 26
"""The most bytes of one image."""
MAX_COUNT = 1 << 31
_NAMES = {1: "labels", 3: "images"}


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
    wanted = _NAMES[dimensions]
    if len(head) < 4 or head[:2] != b"\0\0":
        raise unreadable(path, "it is no idx file", f"name an idx file of {wanted}, plain or `.gz`")
    if head[2] != UNSIGNED_BYTES:
        raise unreadable(path, f"its values have type 0x{head[2]:02x}, and unsigned bytes, 0x08, are expected")
    if head[3] != dimensions:
        kind = _NAMES.get(head[3], "other data")
        message = f"it has {head[3]} dimensions, which is an idx file of {kind}, and {wanted} have {dimensions}"
        raise unreadable(path, message, "are the two files exchanged?" if head[3] in _NAMES else "")
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
