"""Rows of token ids, or of the bytes of images, in memory-mapped files of Apache Arrow: a corpus may be larger than memory.

A file is not trusted. It is read message by message: one with compressed buffers is refused before they are unpacked, and the
offsets of every part are checked before a row is read. https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import Diagnostic, StoreError
from ..files import replace_file

Ids = npt.NDArray[np.int32]
TAGS = "tags"
"""The column of the labels of tokens, which has the lengths of `target`."""
LINKS = "links"
"""The column of aligned tokens of training rows: source and target token of each link, one after another."""
GOLD = "gold"
"""The column of aligned words of validation rows: source word, target word and whether the link is sure (1) of each link."""
NO_LABEL = -100
"""The label of positions that the loss ignores: torch's `ignore_index`."""
CHUNK = 10_000
CHUNK_BYTES = 1 << 28
"""The most bytes of images in a chunk, whose offsets are int32."""
SMALL_ROWS, SMALL_BYTES = CHUNK // 10, 1 << 20
"""A chunk with fewer rows and bytes is the last one: each takes memory, even without a row."""
MAX_METADATA = 1 << 16
"""The most bytes of the metadata of a message: types of columns, or places of buffers."""
MAX_COLUMNS = 16
MAX_TEXT = 1 << 25
"""The most bytes of the text of a row, which is read whole: a question with its context, as JSON."""
CONTINUES = 0xFFFFFFFF
"""What each message begins with; the size of its metadata follows."""
ENDING, PLACE = 10, 24
"""The last bytes of a file, with the size of the footer; and the bytes of the place of a part in it."""


@dataclass(frozen=True)
class Column:
    """The chunks of a column: the numbers of their first rows, and their offsets and values in the layout of Arrow."""

    starts: npt.NDArray[np.int64]
    offsets: list[Ids]
    values: list[Ids]

    def row(self, number: int) -> Ids:
        chunk = int(np.searchsorted(self.starts, number, "right")) - 1
        at = number - int(self.starts[chunk])
        return self.values[chunk][self.offsets[chunk][at] : self.offsets[chunk][at + 1]]

    @property
    def lengths(self) -> Ids:
        if any(values.dtype == np.uint8 for values in self.values):
            return np.ones(sum(len(offsets) - 1 for offsets in self.offsets), np.int32)
        return np.concatenate([np.diff(offsets) for offsets in self.offsets]) if self.offsets else np.zeros(0, np.int32)


class Corpus:
    """A corpus file.

    Attributes:
        lengths: (N,) the lengths of the rows by column (`source`, `target`), in memory; an image counts as 1.
        texts: The texts of columns that have them.
        numbers: (N,) int32 columns, such as labels.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with pa.memory_map(str(path)) as file:
                table = _table(file)
        except (OSError, ValueError, struct.error, pa.ArrowException) as reason:
            raise self.damaged(f"it cannot be read: {' '.join(str(reason).split())}") from None
        self.texts: dict[str, Any] = {}
        self.numbers: dict[str, npt.NDArray[np.int32]] = {}
        self._columns: dict[str, Column] = {}
        for name in table.column_names:
            column = table.column(name)
            if pa.types.is_list(column.type):
                self._columns[name] = _column(column)
            elif column.type == pa.int32():
                self.numbers[name] = column.to_numpy()
            else:
                self.texts[name] = column
        self.lengths = {name: column.lengths for name, column in self._columns.items() if name not in (TAGS, LINKS, GOLD)}
        self._first = 0

    def __len__(self) -> int:
        return len(next(iter(self.lengths.values())))

    def part(self, rows: range) -> Corpus:
        """Some rows that follow each other, as a corpus whose rows count from 0."""
        part = copy(self)
        part._first += rows.start
        part.lengths = {name: lengths[rows.start : rows.stop] for name, lengths in self.lengths.items()}
        part.numbers = {name: numbers[rows.start : rows.stop] for name, numbers in self.numbers.items()}
        part.texts = {name: texts.slice(rows.start, len(rows)) for name, texts in self.texts.items()}
        return part

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.lengths)

    def damaged(self, reason: str) -> StoreError:
        """The error of a file whose content is not what tfkit writes."""
        return StoreError(Diagnostic("TFK082", f"{self.path}: {reason}", "it was altered or cut off"))

    def has(self, column: str) -> bool:
        """Whether there is such a column of lists of numbers."""
        return column in self._columns

    def check(
        self, sizes: Mapping[str, int], spans: bool = False, links: str | None = None, texts: Collection[str] = ()
    ) -> None:
        """Check the content of a file against what is trained. Raises StoreError for other columns, no token, or a number
        outside of its range, from 0 to `sizes` of its column. Labels of `TAGS` may be `NO_LABEL`. `spans`: there are also
        `start` and `end`, two positions of each row. `links` is the column of aligned tokens or words; `texts`
        are the columns of texts."""
        wanted = {*sizes, *(("start", "end") if spans else ()), *([] if links is None else [links])}
        if wanted != {*self._columns, *self.numbers}:
            present = ", ".join(sorted({*self._columns, *self.numbers})) or "none"
            raise self.damaged(f"its columns of numbers are {present[:200]}, and {', '.join(sorted(wanted))} are expected")
        if {*self.texts} != {*texts}:
            present = ", ".join(sorted(self.texts)) or "none"
            raise self.damaged(f"its columns of texts are {present[:200]}, and {', '.join(texts) or 'none'} are expected")
        if not len(self) or not all(lengths.any() for lengths in self.lengths.values()):
            raise self.damaged("it has no row with a token")
        for name, size in sizes.items():
            parts = self._columns[name].values if name in self._columns else [self.numbers[name]]
            least = min((int(part.min()) for part in parts if len(part)), default=0)
            most = max((int(part.max()) for part in parts if len(part)), default=0)
            if not (NO_LABEL if name == TAGS else 0) <= least <= most < size:
                raise self.damaged(f"`{name}` has numbers from {least:,} to {most:,}, and 0 to {size - 1:,} are expected")
        if TAGS in sizes and not np.array_equal(self._columns[TAGS].lengths, self.lengths["target"]):
            raise self.damaged(f"its rows have other lengths in `{TAGS}` than in `target`")
        if links is not None:
            self._check_links(links)
        if spans:
            start, end = self.numbers["start"], self.numbers["end"]
            if not ((start >= 0) & (start <= end) & (end < self.lengths["target"])).all():
                raise self.damaged("`start` and `end` of a row are not two of its positions, in order")

    def _check_links(self, name: str) -> None:
        """Raises StoreError unless every link has its numbers, within the row."""
        size, lengths = 2 if name == LINKS else 3, self._columns[name].lengths
        values = np.concatenate([np.zeros(0, np.int32), *self._columns[name].values])
        if (lengths % size).any() or (values < 0).any():
            raise self.damaged(f"`{name}` has {size} numbers from 0 for each link")
        rows, links = np.repeat(np.arange(len(lengths)), lengths // size), values.reshape(-1, size)
        sides = ("source", "target") if name == LINKS else ()
        if any((links[:, at] >= self.lengths[side][rows]).any() for at, side in enumerate(sides)):
            raise self.damaged(f"`{name}` links a token that its row does not have")
        if not sides and (links[:, 2] > 1).any():
            raise self.damaged(f"`{name}` says of a link whether it is sure, 0 or 1")

    def rows(self, column: str, numbers: Iterable[int]) -> list[Ids]:
        """The ids of some rows, as read-only views of the file."""
        return [self._columns[column].row(self._first + int(number)) for number in numbers]

    def text(self, column: str, count: int) -> list[str]:
        """The text of the first `count` rows."""
        return [str(text) for text in self.texts[column].slice(0, count).to_pylist()]


def _table(file: Any) -> Any:
    """The checked rows of a file. Its footer, which says where the messages are, is not needed. Raises ValueError."""
    if file.read(8) != b"ARROW1\0\0":
        raise ValueError("it does not begin as a file of Arrow")
    schema, small, batches = None, False, []
    while _size_of_metadata(file):
        message = pa.ipc.read_message(file)
        if schema is None:
            schema = pa.ipc.read_schema(message)
            _check_columns(schema)
            continue
        if message.type != "record batch":
            raise ValueError(f"it holds a {message.type}, and rows are expected")
        if _compressed(memoryview(message.metadata)):
            raise ValueError("its buffers are compressed, and tfkit writes none that are")
        if small:
            raise ValueError(f"a part before the last has fewer than {SMALL_ROWS:,} rows and {SMALL_BYTES:,} bytes")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        if any(column.null_count or (pa.types.is_list(column.type) and column.values.null_count) for column in batch.columns):
            raise ValueError("it holds nulls")
        for column in batch.columns:
            if pa.types.is_string(column.type) and (longest := _longest(column)) > MAX_TEXT:
                raise ValueError(f"a text has {longest:,} bytes, and at most {MAX_TEXT:,} are expected")
        small = batch.num_rows < SMALL_ROWS and message.body.size < SMALL_BYTES
        batches.append(batch)
    _check_end(file, len(batches))
    return pa.Table.from_batches(batches, schema)


def _longest(texts: Any) -> int:
    """The bytes of the longest of some texts."""
    offsets = np.frombuffer(texts.buffers()[1] or b"", np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return int(np.diff(offsets).max(initial=0))


def _size_of_metadata(file: Any) -> int:
    """The size of the metadata of the message that comes next, which pyarrow would read whole; 0 at the end, which is read.
    Raises ValueError."""
    at = file.tell()
    mark, size = struct.unpack("<II", file.read(8))
    if mark != CONTINUES:
        raise ValueError(f"no part begins at byte {at:,}")
    if size > MAX_METADATA:
        raise ValueError(f"the metadata of a part have {size:,} bytes, at most {MAX_METADATA:,} are expected")
    if size:
        file.seek(at)
    return int(size)


def _check_end(file: Any, parts: int) -> None:
    """Raises ValueError unless the rest of a file is a footer for so many parts."""
    rest, most = file.size() - file.tell() - ENDING, MAX_METADATA + PLACE * parts
    file.seek(max(0, file.size() - ENDING))
    size, name = struct.unpack("<i6s", file.read(ENDING))
    if name != b"ARROW1" or size != rest:
        raise ValueError("it does not end with the footer of a file of Arrow")
    if size > most:
        raise ValueError(f"its footer has {size:,} bytes, at most {most:,} are expected")


def _check_columns(schema: Any) -> None:
    types = (pa.list_(pa.int32()), pa.list_(pa.uint8()), pa.int32(), pa.string())
    if len(schema) > MAX_COLUMNS or len(set(schema.names)) < len(schema):
        raise ValueError(f"it has {len(schema):,} columns, and at most {MAX_COLUMNS} with different names are expected")
    for field in schema:
        if field.type not in types:
            raise ValueError(
                f"a column has the type {str(field.type)[:60]}, and only {', '.join(map(str, types))} are expected"
            )


def _compressed(metadata: memoryview) -> bool:
    """Whether the buffers of a chunk are compressed: the field `compression`, 3, of the table `RecordBatch`, which is the field
    `header`, 2, of the table `Message`. https://github.com/apache/arrow/blob/main/format/Message.fbs"""

    def field(table: int, number: int) -> int:
        """Where the field of a table of FlatBuffers is; 0 if the table does not have it."""
        fields = table - struct.unpack_from("<i", metadata, table)[0]
        slot = 4 + 2 * number
        if slot >= struct.unpack_from("<H", metadata, fields)[0]:
            return 0
        offset: int = struct.unpack_from("<H", metadata, fields + slot)[0]
        return table + offset if offset else 0

    def target(place: int) -> int:
        return place + int(struct.unpack_from("<I", metadata, place)[0])

    header = field(target(0), 2)
    return bool(header and field(target(header), 3))


def _column(column: Any) -> Column:
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    starts = np.cumsum([0, *(len(chunk) for chunk in chunks)], dtype=np.int64)
    return Column(
        starts[:-1],
        [chunk.offsets.to_numpy(zero_copy_only=True) for chunk in chunks],
        [chunk.values.to_numpy(zero_copy_only=True) for chunk in chunks],
    )


class CorpusWriter:
    """Writes a corpus row by row. The file has another name until `close`. With `images`, rows are bytes."""

    def __init__(
        self,
        path: str | Path,
        columns: Sequence[str],
        texts: Sequence[str] = (),
        numbers: Sequence[str] = (),
        images: bool = False,
    ) -> None:
        self.path, self.columns, self.numbers = Path(path), tuple(columns), tuple(numbers)
        self.images, self._bytes = images, 0
        kinds = ((columns, pa.list_(pa.uint8() if images else pa.int32())), (texts, pa.string()), (numbers, pa.int32()))
        self.schema = pa.schema([pa.field(name, kind) for names, kind in kinds for name in names])
        self.draft = self.path.with_suffix(".draft")
        self.rows = 0
        self.tokens = dict.fromkeys(columns, 0)
        self._digest = hashlib.sha256()
        self._pending: list[tuple[Any, ...]] = []
        try:
            self._file = pa.OSFile(str(self.draft), "wb")
        except OSError as reason:
            raise _unwritable(self.path, reason) from None
        self._writer = pa.ipc.new_file(self._file, self.schema)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row: ids, texts and numbers by column."""
        values = tuple(row[name] for name in self.schema.names)
        for name in self.columns:
            values_of = np.asarray(row[name], np.uint8 if self.images else np.int32).tobytes()
            self._digest.update(values_of + b"/")
            self._bytes += len(values_of)
            self.tokens[name] += 1 if self.images else len(row[name])
        for name in self.numbers:
            self._digest.update(f"{row[name]}/".encode())
        self.rows += 1
        self._pending.append(values)
        if len(self._pending) == CHUNK or self._bytes >= CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        arrays = [
            pa.array(values, field.type) for values, field in zip(zip(*self._pending, strict=True), self.schema, strict=True)
        ]
        try:
            self._writer.write_batch(pa.record_batch(arrays, schema=self.schema))
        except OSError as reason:
            raise _unwritable(self.path, reason) from None
        self._pending, self._bytes = [], 0

    def close(self) -> str:
        """Finish the file; returns the digest of its ids. Raises StoreError."""
        try:
            if self._pending:
                self._flush()
            self._writer.close()
            self._file.close()
            replace_file(self.draft, self.path)
        except OSError as reason:
            raise _unwritable(self.path, reason) from None
        return self._digest.hexdigest()


def _unwritable(path: Path, reason: OSError) -> StoreError:
    return StoreError(Diagnostic("TFK081", f"{path} could not be written: {reason.strerror or reason}"))
