"""Text files line by line, plain or gzip. A line ends at a line feed and nowhere else: other break characters of Unicode are
text, so that line n is the line n that every editor shows and that the other side of a parallel corpus means."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import Fault, InputError, Mark

MAX_LINE = 1 << 20


def lines(path: str | Path) -> Iterator[str]:
    """The lines of a file without their ends, a carriage return before the line feed included.

    Raises InputError for a file that cannot be read, with the line and column of what is no UTF-8.
    """
    path = Path(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield from lines_of(file, str(path))
    except (OSError, EOFError, zlib.error) as reason:
        words = getattr(reason, "strerror", None) or str(reason)
        raise InputError(Fault("TFK100", f"{path} cannot be read: {words}")) from None


def lines_of(file: BinaryIO | gzip.GzipFile, name: str) -> Iterator[str]:
    """The lines of an open file, read as they come; `name` is what errors call it. Raises InputError."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
        if len(line) > MAX_LINE:
            raise InputError(Fault("TFK101", f"the line is longer than {MAX_LINE:,} bytes", mark=Mark(name, number)))
        text = _text(line.removesuffix(b"\n").removesuffix(b"\r"), name, number)
        yield text.removeprefix("\ufeff") if number == 1 else text  # a byte order mark is no text


def _text(line: bytes, name: str, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as reason:
        column = len(line[: reason.start].decode("utf-8")) + 1
        message = f"byte 0x{line[reason.start]:02x} is no UTF-8"
        fix = f"convert the file, for instance with `iconv -f latin1 -t utf8 {name}`"
        raise InputError(Fault("TFK101", message, fix, mark=Mark(name, number, column))) from None


def rows(*paths: str | Path) -> Iterator[tuple[str, ...]]:
    """Line n of every file, together. Raises InputError where the files have different numbers of lines, with both."""
    readers = [lines(path) for path in paths]
    count = 0
    while True:
        row = [next(reader, None) for reader in readers]
        whole = [line for line in row if line is not None]
        if len(whole) == len(row):
            count += 1
            yield tuple(whole)
            continue
        if whole:
            totals = [
                count if line is None else count + 1 + sum(1 for _ in reader) for line, reader in zip(row, readers, strict=True)
            ]
            shown = ", ".join(f"{path} has {total:,}" for path, total in zip(paths, totals, strict=True))
            fix = f"line {count + 1:,} has no partner: find where the files went apart"
            raise InputError(Fault("TFK102", f"the files have different numbers of lines: {shown}", fix))
        if not count:
            raise InputError(Fault("TFK103", f"{', '.join(map(str, paths))}: there is no line to read"))
        return
