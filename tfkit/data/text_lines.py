"""Text files line by line, plain or gzip. Only a line feed ends a line. Other line breaks of Unicode are text, so that line
numbers agree with editors and with the other file of a parallel corpus."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from ..errors import Diagnostic, InputError, Location
from ..errors.arguments import check_list, check_whole
from ..files import open_regular, wide_encoding
from .unpacked import TooFar, unpacked

MAX_LINE = 1 << 20
"""The longest line, in bytes."""
MAX_EMPTY = 100_000
"""The longest run of lines without text, in a file or in standard input."""
MAX_GROUP = 2 << 20
"""The most characters of a group of texts that has more than one."""
Item = TypeVar("Item")


def lines(path: str | Path, *, descriptors: bool = False) -> Iterator[str]:
    """The lines of a regular file, without line feeds and the carriage returns before them; one that ends in `.gz` is unpacked.
    With `descriptors`, `/dev/stdin` and `/dev/fd/N` may be pipes, which can be read once.

    Raises InputError if the file cannot be read, is not regular, unpacks to far more bytes than text does, or has bytes that
    are not text (with line and column).
    """
    packed = Path(path).suffix == ".gz"
    try:
        with open_regular(path, descriptors=descriptors) as raw:
            file = unpacked(raw) if packed else raw
            yield from lines_of(file, str(path))
    except OSError as reason:
        raise unreadable(path, reason) from None


def unreadable(path: str | Path, reason: Exception) -> InputError:
    """The error of a file that could not be opened or read."""
    words = getattr(reason, "strerror", None) or str(reason)
    fix = "`/dev/stdin` names standard input" if str(path) == "-" else ""
    return InputError(Diagnostic("TFK100", f"{path} cannot be read: {words}", fix))


def lines_of(file: BinaryIO, name: str) -> Iterator[str]:
    """The lines of an open file, one at a time; `name` is its name in errors. Raises InputError."""

    number = empty = 0

    def read() -> bytes:
        try:
            return file.readline(MAX_LINE + 1)
        except TooFar as reason:
            fix = "text packs 2 to 10 times; if it is text, unpack it first: `gunzip FILE`"
            location = Location(name, number + 1)
            raise InputError(Diagnostic("TFK100", str(reason.strerror), fix, location=location)) from None
        except OSError as reason:
            raise unreadable(name, reason) from None

    for number, line in enumerate(iter(read, b""), 1):
        if len(line) > MAX_LINE:
            fix = "write one sentence or paragraph per line"
            raise InputError(
                Diagnostic("TFK101", f"the line is longer than {MAX_LINE:,} bytes", fix, location=Location(name, number))
            )
        text = _text(line.removesuffix(b"\n").removesuffix(b"\r"), name, number)
        empty = empty + 1 if not text or text.isspace() else 0
        if empty > MAX_EMPTY:
            message = f"more than {MAX_EMPTY:,} lines in a row have no text"
            raise InputError(
                Diagnostic("TFK103", message, "name a file of text, or remove them", location=Location(name, number))
            )
        yield text.removeprefix("\ufeff") if number == 1 else text  # a byte order mark


def _text(line: bytes, name: str, number: int) -> str:
    try:
        text = line.decode("utf-8")
        at = text.find("\0")
        if at < 0:
            return text
        column, byte = at + 1, 0
    except UnicodeDecodeError as reason:
        column, byte = len(line[: reason.start].decode("utf-8")) + 1, line[reason.start]
    message, fix = _not_text(line, byte, "FILE" if name == "<stdin>" else shlex.quote(name), number == 1)
    raise InputError(Diagnostic("TFK101", message, fix, location=Location(name, number, column)))


def _not_text(line: bytes, byte: int, name: str, first: bool) -> tuple[str, str]:
    """The message and the fix for a line with a byte that is not text. Only the `first` line has a byte order mark."""
    wide = wide_encoding(line) if first else None
    if wide is None and 3 * line.count(0) > len(line):
        wide = "utf-16le" if line[1:2] == b"\0" else "utf-16be"
    if wide is not None:
        return "the file is UTF-16 or UTF-32, and not UTF-8", f"convert the file: `iconv -f {wide} -t utf8 {name}`"
    if byte == 0:
        return "byte 0x00 is no text", f"is this a file of text? `tr -d '\\000' < {name}` removes such bytes"
    return f"byte 0x{byte:02x} is no UTF-8", f"convert the file, for instance with `iconv -f latin1 -t utf8 {name}`"


def groups(items: Iterable[Item], size: int, characters: int = MAX_GROUP) -> Iterator[list[Item]]:
    """Lists of `size` items, fewer where their texts have more than so many characters. If the iterable raises an exception,
    the items before it are yielded first."""
    check_whole("chunk", size)
    check_list(items)
    group: list[Item] = []
    room = characters
    failure: Exception | None = None
    remaining = iter(items)
    while failure is None:
        try:
            item = next(remaining)
        except Exception as reason:
            failure = reason
            continue
        count = _characters(item)
        if group and count > room:
            yield group
            group, room = [], characters
        group.append(item)
        room -= count
        if len(group) == size:  # at once: on a terminal the next line may come much later
            yield group
            group, room = [], characters
    if group:
        yield group
    if not isinstance(failure, StopIteration):
        raise failure


def _characters(item: object) -> int:
    """The characters of a text, or of all texts of a tuple."""
    if isinstance(item, str):
        return len(item)
    return sum(map(_characters, item)) if isinstance(item, tuple) else 0


def rows(*paths: str | Path, descriptors: bool = False) -> Iterator[tuple[str, ...]]:
    """Line n of every file as a tuple; `descriptors` as in `lines`. Raises InputError with all counts if the files have
    different numbers of lines."""
    readers = [lines(path, descriptors=descriptors) for path in paths]
    count = 0
    while True:
        row = [next(reader, None) for reader in readers]
        present = [line for line in row if line is not None]
        if len(present) == len(row):
            count += 1
            yield tuple(present)
            continue
        if present:
            totals = [
                count if line is None else count + 1 + sum(1 for _ in reader) for line, reader in zip(row, readers, strict=True)
            ]
            counts = ", ".join(f"{path} has {total:,}" for path, total in zip(paths, totals, strict=True))
            fix = f"line {count + 1:,} is missing in one file: find the first line where they do not match"
            raise InputError(Diagnostic("TFK102", f"the files have different numbers of lines: {counts}", fix))
        if not count:
            raise InputError(Diagnostic("TFK103", f"{', '.join(map(str, paths))}: there is no line to read"))
        return
