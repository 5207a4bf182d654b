"""Word vectors of other programs as the first rows of embedding tables.

text      `N D` on the first line, or not; then a word and D numbers per line      word2vec, GloVe, fastText's .vec; gzip too
binary    `N D`, then N times a word, a space and D float32 numbers                word2vec's .bin

A row takes the vector of its piece, or else that of the word which its piece starts and ends, without the mark of a word. The
rows of all other pieces keep their initial values. https://arxiv.org/abs/1301.3781
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from ..data import Roles, TextTokeniser, lines
from ..errors import Diagnostic, InputError, Location
from ..files.read import open_regular
from ..nn.model import Model
from ..nn.tokens import Tokens
from ..recipe import Recipe

BINARY = ".bin"
"""How the name of a file in the binary form ends."""
MAX_WORD = 10_000
"""Bytes of a word in a binary file, at most, and of its first line."""
BUFFER = 1 << 20
_FOREIGN = re.compile(r"[^\x21-\x5e\x60-\x7e]")
FIX = "name vectors of the width of the table, or change the width in the spec"
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class VectorReport:
    """The rows of a table that were set.

    Attributes:
        node: The tokens node.
        file: The file of vectors.
        matched: The number of rows that were set.
        rows: All rows of the table.
        vectors: The number of vectors in the file.
        width: The features of each.
    """

    node: str
    file: str
    matched: int
    rows: int
    vectors: int
    width: int

    def __str__(self) -> str:
        share = f"{self.matched:,} of {self.rows:,} rows are set"
        return f"vectors: {self.node}: {share} from {self.file}, {self.vectors:,} vectors of {self.width} features"


def check_nodes(recipe: Recipe, model: Model) -> None:
    """Raises InputError for a node of `vectors` that has no table of tokens."""
    for name in recipe.vectors or ():
        node = dict(model.nodes.items()).get(name)
        if not isinstance(node, Tokens) or node.embedding is None:
            tables = [name for name, node in model.nodes.items() if isinstance(node, Tokens) and node.embedding is not None]
            message = f"`{name}` is no node of `{model.plan.name}` with a table of tokens"
            raise InputError(recipe.diagnostic("TFK133", f"vectors.{name}", message, f"write one of {', '.join(tables)}"))


def check_widths(recipe: Recipe, model: Model) -> None:
    """Raises InputError for a file of `vectors` of another width than its table; only its first lines are read."""
    for name, file in (recipe.vectors or {}).items():
        next(_vectors(file, model.nodes[name].table().shape[1], set()), None)  # type: ignore[operator]


@torch.no_grad()
def load_vectors(
    model: Model, recipe: Recipe, roles: Roles, tokenisers: Mapping[str, TextTokeniser]
) -> tuple[VectorReport, ...]:
    """Set the rows of the tables, by node, that the recipe names for an initialised model; a report for each. Raises InputError
    if a file cannot be read, its vectors have another width or hold NaN, or it has none of the pieces."""
    reports = []
    for name, file in (recipe.vectors or {}).items():
        tokeniser = tokenisers["source" if name == roles.source else "target"]
        table = model.nodes[name].table()  # type: ignore[operator]
        exact = tokeniser.vocabulary
        words: dict[str, list[int]] = {}
        for piece, number in exact.items():
            if number not in tokeniser.special_ids and tokeniser.starts_word(piece):
                words.setdefault(piece.removeprefix(tokeniser.word_mark), []).append(number)
        count, by_word, by_piece = 0, dict[int, Vector](), dict[int, Vector]()
        for word, vector in _vectors(file, table.shape[1], exact.keys() | words.keys()):
            count += 1
            if vector is None:
                continue
            same = exact.get(word)
            if same is not None and same not in tokeniser.special_ids:
                by_piece[same] = vector
            by_word.update(dict.fromkeys(words.get(word, ()), vector))
        vectors = by_word | by_piece
        if not vectors:
            message = f"none of its {count:,} words is a piece of the vocabulary of `{name}`"
            fix = "name vectors of the same language, or a tokeniser with larger pieces (`vocab_size`)"
            raise InputError(Diagnostic("TFK133", message, fix, location=Location(file)))
        rows = torch.from_numpy(np.stack(list(vectors.values())))
        table[list(vectors)] = rows.to(table)
        reports.append(VectorReport(name, file, len(vectors), table.shape[0], count, table.shape[1]))
    return tuple(reports)


def _vectors(file: str, width: int, known: set[str]) -> Iterator[tuple[str, Vector | None]]:
    """The words of a file with their vectors (width,), None for words that are not `known`."""
    return _of_binary(file, width, known) if file.endswith(BINARY) else _of_text(file, width, known)


def _fault(file: str, line: int, message: str, fix: str = FIX) -> InputError:
    return InputError(Diagnostic("TFK133", message, fix, location=Location(file, line)))


def _of_text(file: str, width: int, known: set[str]) -> Iterator[tuple[str, Vector | None]]:
    written, count = None, 0
    for number, line in enumerate(lines(file), 1):
        line = line.rstrip()
        head = re.fullmatch(r"([0-9]{1,12}) ([0-9]{1,6})", line) if number == 1 else None
        if head and (width > 1 or head[2] == "1"):
            written = int(head[1])
            if int(head[2]) != width:
                raise _fault(file, 1, f"its vectors have {int(head[2]):,} features, and the table has {width:,}")
            continue
        if not line:
            continue
        count += 1
        features = len(line.split()) - 1
        if features < width:
            raise _fault(file, number, f"the line has a word and {features:,} numbers, and the table has {width:,} features")
        word, *numbers = line.rsplit(None, width)  # a word may hold spaces
        if features > width and _is_number(word.split()[-1]):
            raise _fault(file, number, f"the line has a word and {features:,} numbers, and the table has {width:,} features")
        if word not in known:
            yield word, None
            continue
        try:
            if _FOREIGN.search("".join(numbers)):  # Python reads digits of any script, and 1_0 as 10
                raise ValueError
            vector = np.array(numbers, np.float32)
        except ValueError:
            raise _fault(file, number, "what follows the word are not numbers", "is this a file of vectors?") from None
        yield word, _finite(vector, file, number)
    if written not in (None, count):
        raise _fault(file, 1, f"{written:,} vectors are announced, and {count:,} follow", "is the file complete?")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _of_binary(file: str, width: int, known: set[str]) -> Iterator[tuple[str, Vector | None]]:
    try:
        with open_regular(file) as stream:
            head = re.fullmatch(rb"(\d{1,12}) (\d{1,6})\n", stream.readline(MAX_WORD))
            if head is None:
                fix = "is this word2vec's binary form? Files in the text form do not end in `.bin`"
                raise _fault(file, 1, "the first line is not the number of vectors and that of their features", fix)
            count, features = map(int, head.groups())
            if features != width:
                raise _fault(file, 1, f"its vectors have {features:,} features, and the table has {width:,}")
            yield from _records(stream, file, count, width, known)
    except OSError as reason:
        raise InputError(Diagnostic("TFK133", f"{file} cannot be read: {reason.strerror}")) from None


def _records(stream: BinaryIO, file: str, count: int, width: int, known: set[str]) -> Iterator[tuple[str, Vector | None]]:
    """The records behind the first line."""
    data, at, size = b"", 0, 4 * width
    for number in range(1, count + 1):
        end = data.find(b" ", at)
        if end < 0 or end + 1 + size > len(data):
            data, at = data[at:] + stream.read(max(BUFFER, size + MAX_WORD)), 0
            end = data.find(b" ", 0, MAX_WORD + 2)
        if end < 0 or end + 1 + size > len(data):
            fix = "is the file complete, and in word2vec's binary form?"
            raise InputError(Diagnostic("TFK133", f"{file}: vector {number:,} of {count:,} is not complete", fix))
        word = data[at:end].lstrip(b"\n").decode("utf-8", "replace")
        numbers = data[end + 1 : end + 1 + size]
        at = end + 1 + size
        yield word, _finite(np.frombuffer(numbers, "<f4").astype(np.float32), file, 1) if word in known else None
    if (data[at:] + stream.read(2)).strip(b"\n"):
        raise _fault(file, 1, f"more than the {count:,} vectors that are announced follow", "is the file word2vec's?")


def _finite(vector: Vector, file: str, line: int) -> Vector:
    if not np.isfinite(vector).all():
        raise _fault(file, line, "a vector holds NaN or infinity", "write finite numbers")
    return vector
