"""Weights that torch.save pickled, through torch's reader of weights, which runs no code. A file is bounded before it is read.

A file of today is an archive without compressed members: a pickle that names the tensors, and a member for each storage. One of
torch before 1.6 is a row of pickles with the storages behind them.
"""

from __future__ import annotations

import io
import os
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..files import open_regular

LARGEST_LIST = 1 << 20
"""The most bytes of the list of members, and of the pickles that name tensors. A file of 5,000 tensors has about as many; the
reader takes 3 s and 110 MB for the worst of this size."""
LARGEST_EXTRA = 64
"""The most bytes of the extra fields of a member in the list: sizes of 64 bits take 28."""
_END, _END_64, _PLACE_64, _MEMBER = (struct.Struct(f"<4s{fields}") for fields in ("4H2LH", "Q2H2L4Q", "LQL", "6H3L5H2L"))
"""The records at the end of an archive, and that of a member in its list: sections 4.3.12 to 4.3.16 of
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT"""


def load_pickled(path: Path) -> Any:
    """What torch.save wrote into a file, on the CPU. Raises ValueError if it would take more memory than its size; torch's
    reader raises many kinds for a file that holds more than weights, or is damaged."""
    import torch

    with open_regular(path, links=False) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "the load might not succeed": then it raises
        size = os.fstat(file.fileno()).st_size
        archive = file.read(4) == b"PK\3\4"
        if archive:
            _check_members(file, size)
            return torch.load(path, map_location=_bounded_storages(size), weights_only=True)
        with _Pickles(io.FileIO(file.fileno(), closefd=False)) as pickles:
            pickles.seek(0)
            return torch.load(pickles, map_location=_bounded_storages(size, empty=True), weights_only=True)


def _bounded_storages(size: int, empty: bool = False) -> Callable[[Any, str], Any]:
    """Leaves each storage on the CPU, and raises ValueError where all have more bytes than the file.

    `empty`: they are not read yet. They become zeros: one that the file does not list would keep what the memory held.
    """
    total = 0

    def stay(storage: Any, location: str) -> Any:
        nonlocal total
        total += storage.nbytes()
        if total > size:
            raise ValueError(f"its tensors have more bytes than the {size:,} of the file")
        return storage.fill_(0) if empty else storage

    return stay


class _Pickles(io.BufferedReader):
    """A file of which pickles may take `LARGEST_LIST` bytes. Storages are read from its descriptor."""

    left = LARGEST_LIST

    def _take(self, size: int) -> int:
        if not 0 <= size <= self.left:
            raise ValueError(f"its pickles have more than {LARGEST_LIST:,} bytes")
        self.left -= size
        return size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._take(-1 if size is None else size))

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(self.left + 1)
        self._take(len(line))
        return line

    def readinto(self, buffer: Any, /) -> int:
        self._take(memoryview(buffer).nbytes)
        return super().readinto(buffer)


def _check_members(file: BinaryIO, size: int) -> None:
    """Raises ValueError for an archive whose members may have more bytes than the file, or whose list takes long to read."""
    listed = _list_of_members(file, size)
    for extra in _extra_fields(listed):
        if extra > LARGEST_EXTRA:
            raise ValueError(f"a member has extra fields of {extra:,} bytes, and at most {LARGEST_EXTRA} are expected")
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("its members are compressed, and torch writes none that are")
    if (total := sum(member.file_size for member in members)) > size:
        raise ValueError(f"its members have {total:,} bytes, the file {size:,}")
    for member in members:
        if member.file_size > LARGEST_LIST and not re.fullmatch(r"[^/]+/data/[^/]+", member.filename):
            name = member.filename[:80]
            raise ValueError(f"{name} has {member.file_size:,} bytes, and at most {LARGEST_LIST:,} are expected")


def _list_of_members(file: BinaryIO, size: int) -> bytes:
    """The list at the end of an archive. Raises ValueError for one that another reader could look for at another place."""
    at = size - _END.size
    sign, *_, length, start, comment = _END.unpack(_read(file, at, _END.size))
    if sign != b"PK\5\6" or comment:
        raise ValueError("it has a comment or was cut off, and torch writes no comment")
    place = at - _PLACE_64.size
    sign, _, record, _ = _PLACE_64.unpack(_read(file, place, _PLACE_64.size))
    if sign == b"PK\6\7":
        at = place - _END_64.size
        sign, *_, length, start = _END_64.unpack(_read(file, at, _END_64.size))
        if sign != b"PK\6\6" or record != at:
            raise ValueError("its list of members is not where its end says")
    if length > LARGEST_LIST:
        raise ValueError(f"its list of members has {length:,} bytes, and at most {LARGEST_LIST:,} are expected")
    if start + length != at:
        raise ValueError("its list of members is not where its end says")
    return _read(file, start, length)


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    if at < 0:
        raise ValueError("it was cut off")
    file.seek(at)
    return file.read(size)


def _extra_fields(listed: bytes) -> Iterator[int]:
    """The bytes of the extra fields of each member of a list. Raises ValueError for a list that is damaged."""
    at = 0
    while at < len(listed):
        if listed[at : at + 4] != b"PK\1\2" or at + _MEMBER.size > len(listed):
            raise ValueError("its list of members is damaged")
        *_, name, extra, comment, _, _, _, _ = _MEMBER.unpack_from(listed, at)
        yield extra
        at += _MEMBER.size + name + extra + comment
