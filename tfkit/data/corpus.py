"""Rows of token ids, or of the bytes of images, in memory-mapped files of Apache Arrow: a corpus may be larger than memory.

https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
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
NO_LABEL = -100
"""The label of positions that the loss ignores: torch's `ignore_index`."""
CHUNK = 10_000
CHUNK_BYTES = 1 << 28
"""The most bytes of images in a chunk, whose offsets are int32."""


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
        try:
            with pa.memory_map(str(path)) as file:
                table = pa.ipc.open_file(file).read_all()
        except (OSError, pa.ArrowInvalid) as reason:
            raise StoreError(Diagnostic("TFK082", f"{path} cannot be read: {' '.join(str(reason).split())}")) from None
        self.path = Path(path)
        self.texts: dict[str, Any] = {}
        self.numbers: dict[str, npt.NDArray[np.int32]] = {}
        self._columns: dict[str, Column] = {}
        for name in table.column_names:
            column = table.column(name)
            if pa.types.is_list(column.type):
                self._columns[name] = _column(column)
            elif pa.types.is_integer(column.type):
                self.numbers[name] = column.to_numpy()
            else:
                self.texts[name] = column
        self.lengths = {name: column.lengths for name, column in self._columns.items() if name != TAGS}

    def __len__(self) -> int:
        return len(next(iter(self.lengths.values())))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.lengths)

    def rows(self, column: str, numbers: Iterable[int]) -> list[Ids]:
        """The ids of some rows, as read-only views of the file."""
        return [self._columns[column].row(int(number)) for number in numbers]

    def text(self, column: str, count: int) -> list[str]:
        """The text of the first `count` rows."""
        return [str(text) for text in self.texts[column].slice(0, count).to_pylist()]


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
