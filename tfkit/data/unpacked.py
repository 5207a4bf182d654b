"""Files of gzip, unpacked as far as they are read. zlib reads the heads of members; what comes out is bounded by what went in.

Reference: https://www.rfc-editor.org/rfc/rfc1952
"""

from __future__ import annotations

import errno
import io
import zlib
from typing import Any, BinaryIO

MAX_RATIO, FREE_BYTES = 100, 4 << 20
"""A file may unpack to `FREE_BYTES`, and beyond that to `MAX_RATIO` times the bytes read. Text compresses 2 to 10 fold."""
MEMBER_BYTES, FREE_MEMBERS = 1_000, 1_000
"""A file may have `FREE_MEMBERS` members, and beyond that one for each so many bytes read; those of bgzip have 20,000."""
CHUNK = 1 << 16
GZIP = 16 + zlib.MAX_WBITS


class TooFar(OSError):
    """More comes out of a file than of text."""


class Unpacked(io.RawIOBase):
    """The bytes in a file of gzip. Reading raises OSError if it is no such file, is damaged or cut off, or has very many
    members; `TooFar` if far more comes out than went in."""

    def __init__(self, packed: BinaryIO) -> None:
        self.packed = packed
        self.waiting = b""  # read, and not unpacked
        self.read_bytes = self.unpacked = self.members = 0
        self.member: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""
        while self.member is not None or self._begin():
            if not self.waiting:
                self._fill()
            try:
                data: bytes = self.member.decompress(self.waiting, size)
            except zlib.error as reason:
                checks = ("incorrect data check", "incorrect length check")
                why = "CRC check failed" if str(reason).endswith(checks) else "it is damaged"
                raise OSError(errno.EINVAL, f"{why}, so it was altered or cut off") from None
            if self.member.eof:
                self.waiting, self.member = self.member.unused_data, None
            elif not self.waiting and not data:
                raise OSError(errno.EINVAL, "Compressed file ended before the end of its last member")
            else:
                self.waiting = self.member.unconsumed_tail
            self._count(len(data))
            if data:
                return data
        return b""

    def _begin(self) -> bool:
        """Begin the next member, behind zeros, which may follow one. False if there is none."""
        padding = b"\0" if self.members else b""
        self.waiting = self.waiting.lstrip(padding)
        while not self.waiting and self._fill():
            self.waiting = self.waiting.lstrip(padding)
        if not self.waiting:
            return False
        if len(self.waiting) < 2:
            self._fill()
        if self.waiting[:2] != b"\x1f\x8b":
            raise OSError(errno.EINVAL, f"Not a gzipped file ({self.waiting[:2]!r})")
        self.members += 1
        read = self.read_bytes - len(self.waiting)
        if self.members > FREE_MEMBERS + read // MEMBER_BYTES:
            message = f"its first {read:,} bytes are {self.members - 1:,} members, and gzip writes one for a file"
            raise OSError(errno.EINVAL, f"{message}; pack it again")
        self.member = zlib.decompressobj(GZIP)
        return True

    def _fill(self) -> bool:
        """Read on. False at the end."""
        data = self.packed.read(CHUNK)
        self.waiting += data
        self.read_bytes += len(data)
        return bool(data)

    def _count(self, size: int) -> None:
        self.unpacked += size
        read = self.read_bytes - len(self.waiting)
        if self.unpacked > FREE_BYTES + MAX_RATIO * read:
            message = f"{self.unpacked:,} bytes come out of the first {read:,} bytes, more than {MAX_RATIO} times as many"
            raise TooFar(errno.EFBIG, message)


def unpacked(packed: BinaryIO) -> BinaryIO:
    """The bytes in a file of gzip, as a file. Errors as `Unpacked`."""
    return io.BufferedReader(Unpacked(packed), CHUNK)
