"""Shortlists: the target ids that may translate a source. A search with one computes the logits of these ids only.

A table names target ids for ids and n-grams of the source, as the vocabulary map of CTranslate2 (`vmap.txt`) does, and those
that every source has. It is learnt from parallel text (`lexical_table.py`) or read from such a map, and lies beside the weights
of a model:

shortlist.safetensors   tokenisers (2, 32) uint8: the SHA-256 of the tokenisers of source and target
                        always (A,) int32: target ids of every source
                        ngrams (K, n) int32: ids of the source, filled up with -1
                        ends (K,) int64, targets (N,) int32: row k has the target ids before ends[k] and after those before it
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..data import TextTokeniser, groups, lines, rows
from ..errors import Diagnostic, InputError, Location, StoreError
from ..errors.arguments import check_whole
from ..files import read_header, write_whole
from ..io.layout import SHORTLIST as SHORTLIST
from .lexical_table import MAX_ENTRIES, Pairs, lexical_table, likeliest

DTYPES = {"tokenisers": "uint8", "always": "int32", "ngrams": "int32", "ends": "int64", "targets": "int32"}
MAX_NGRAM, MAX_ROWS = 16, 500_000
"""Tokens of an n-gram, and rows of a table: as many as a tokeniser has pieces."""
MAX_TARGETS = MAX_ENTRIES + MAX_ROWS
"""Target ids of all rows: what is learnt, and each id itself."""
MAX_TOKENS = 1000
"""Tokens of a side of a pair, at most, to learn from it: a pair has as many places as the product of its lengths."""
GROUP = 1000
"""Lines that are encoded at a time."""
SEPARATORS = frozenset(" \t\n\r")
"""Characters that no token of a vocabulary map can have."""


class Shortlist:
    """The target ids that may translate a source.

    Args:
        tokenisers: Of `source` and `target`.
        always: Target ids of every source.
        rows: Target ids by ids of the source: of single tokens or of n-grams.

    Attributes:
        left_out: The number of pairs that were too long to learn from.

    Raises:
        InputError: An id is not in the vocabulary of its tokeniser, an n-gram is empty or too long, there are too many, or no
            target id is that of a text.
    """

    def __init__(
        self, tokenisers: Mapping[str, TextTokeniser], always: Sequence[int] | Tensor, rows: Mapping[tuple[int, ...], Any]
    ) -> None:
        self.tokenisers, self.always, self.rows = tokenisers, torch.as_tensor(always, dtype=torch.int64, device="cpu"), {}
        self.left_out = 0
        self.lengths: tuple[int, ...] = tuple(sorted({len(ngram) for ngram in rows}))
        if self.lengths and not 1 <= self.lengths[0] <= self.lengths[-1] <= MAX_NGRAM:
            message = f"a shortlist has n-grams of {self.lengths[0]} to {self.lengths[-1]} tokens"
            raise InputError(Diagnostic("TFK139", message, f"they have 1 to {MAX_NGRAM}"))
        for ngram, targets in rows.items():
            ids = torch.as_tensor(targets, device="cpu")
            self.rows[ngram] = ids if ids.dtype == torch.int32 else ids.to(torch.int64)
        counts = [*map(len, self.rows.values())]
        _check_size(len(counts), sum(counts), max(len(self.always), *counts, 0), tokenisers["target"])
        flat = torch.tensor([number for ngram in self.rows for number in ngram], dtype=torch.int64, device="cpu")
        _check_ids("source", flat, tokenisers["source"])
        _check_ids("target", torch.cat([self.always, *self.rows.values()]), tokenisers["target"])
        special = {*tokenisers["target"].special_ids, *_specials(tokenisers["target"])}
        if all({*ids.tolist()} <= special for ids in (self.always, *self.rows.values())):
            message = "a shortlist has no target tokens except special ones, and every translation would be empty"
            raise InputError(Diagnostic("TFK139", message, "take a map with translations, or learn one from text"))

    def of(self, sources: Sequence[Sequence[int]]) -> list[Tensor]:
        """The target ids of each source.

        Args:
            sources: Ids, special tokens included.

        Returns:
            For each source its target ids, in increasing order.
        """
        return [torch.cat([self.always, *self._parts(source)]).unique() for source in sources]  # type: ignore[no-untyped-call]

    def _parts(self, source: Sequence[int]) -> Iterator[Tensor]:
        ngrams = {tuple(source[at : at + n]) for n in self.lengths for at in range(len(source) - n + 1)}
        return (self.rows[ngram] for ngram in ngrams if ngram in self.rows)

    def check(self, tokenisers: Mapping[str, TextTokeniser]) -> None:
        """Raises InputError unless the shortlist is one of these tokenisers."""
        for column in ("source", "target"):
            if self.tokenisers[column].digest != tokenisers[column].digest:
                raise _other(f"the shortlist is of another tokeniser of the {column} than the model")

    @classmethod
    def learn(
        cls, tokenisers: Mapping[str, TextTokeniser], source: str | Path, target: str | Path, *, per_token: int = 100,
        frequent: int = 100, iterations: int = 5,
    ) -> Shortlist:  # fmt: skip
        """Learn a shortlist from parallel text.

        A source has the `per_token` likeliest translations of each of its ids, by IBM model 1, the `frequent` most frequent
        target ids and the special ones. If source and target have one tokeniser, an id also translates itself. The files are
        read once for each iteration. A pair with more than `MAX_TOKENS` tokens on a side is left out.

        Args:
            tokenisers: Of `source` and `target`.
            source: A file of text, plain or gzip.
            target: The file whose line n translates line n of the source.
            per_token: Target ids of one source id.
            frequent: Target ids of every source.
            iterations: Of expectation maximisation.

        Returns:
            The shortlist.

        Raises:
            InputError: A file cannot be read, they have different numbers of lines, or no pair has tokens on both sides.
        """
        for name, value in (("per_token", per_token), ("frequent", frequent), ("iterations", iterations)):
            check_whole(name, value)
        sources, targets = tokenisers["source"].size, tokenisers["target"].size
        left_out = 0

        def pairs() -> Pairs:
            nonlocal left_out
            left_out = 0
            for pair in _encoded(tokenisers, source, target):
                if max(map(len, pair)) <= MAX_TOKENS:
                    yield pair
                else:
                    left_out += 1

        keys, probabilities, frequencies = lexical_table(pairs, sources, targets, iterations)
        if not len(keys):
            message = f"no pair of lines has 1 to {MAX_TOKENS:,} tokens on both sides"
            fix = "name parallel text, a sentence on each line"
            raise InputError(Diagnostic("TFK139", message, fix, location=Location(str(source))))
        ends, likely = likeliest(keys, probabilities, sources, targets, per_token)
        order = np.argsort(-frequencies, kind="stable")[:frequent]
        always = {*_specials(tokenisers["target"]), *order[frequencies[order] > 0].tolist()}
        by_id = torch.from_numpy(likely)
        same = tokenisers["source"].digest == tokenisers["target"].digest
        learnt: dict[tuple[int, ...], Tensor] = {}
        for number in range(sources):
            ids = by_id[ends[number] : ends[number + 1]]
            if same and number not in ids:
                ids = torch.cat([ids, torch.tensor([number], device="cpu")])
            if len(ids):
                learnt[(number,)] = ids
        shortlist = cls(tokenisers, sorted(always), learnt)
        shortlist.left_out = left_out
        return shortlist

    @classmethod
    def read_map(cls, tokenisers: Mapping[str, TextTokeniser], path: str | Path) -> Shortlist:
        """Read a vocabulary map of CTranslate2.

        A line is an n-gram of source tokens, a tab, and target tokens, with spaces between tokens. Every source has the target
        tokens of the line whose n-gram is empty, and the special ones.

        Args:
            tokenisers: Of `source` and `target`.
            path: The map.

        Returns:
            The shortlist.

        Raises:
            InputError: The file cannot be read, or a line is wrong or has an unknown token; the line is named.
        """
        source, target = tokenisers["source"].vocabulary, tokenisers["target"].vocabulary
        table: dict[tuple[int, ...], list[int]] = {}
        always: list[int] | None = None
        total = 0
        for number, line in enumerate(lines(path), 1):
            place = Location(str(path), number)
            ngram, tab, targets = line.partition("\t")
            if not tab or "\t" in targets:
                message = f"the line has {line.count(chr(9))} tabs"
                raise InputError(Diagnostic("TFK139", message, "a line is source tokens, a tab, target tokens", location=place))
            ids = [*dict.fromkeys(_id_of(piece, target, "target", place) for piece in targets.split(" ") if piece)]
            key = tuple(_id_of(piece, source, "source", place) for piece in ngram.split(" ")) if ngram else ()
            if key in table or (not key and always is not None):
                raise InputError(Diagnostic("TFK139", "the n-gram has a line already", "remove one of them", location=place))
            total += len(ids)
            if len(key) > MAX_NGRAM or len(table) >= MAX_ROWS or total > MAX_TARGETS:
                message = f"n-gram of {len(key)} tokens, {len(table) + 1:,} n-grams, {total:,} target tokens so far"
                fix = f"at most {MAX_NGRAM}, {MAX_ROWS:,} and {MAX_TARGETS:,} are read"
                raise InputError(Diagnostic("TFK139", message, fix, location=place))
            if key:
                table[key] = ids
            else:
                always = ids
        try:
            return cls(tokenisers, sorted({*_specials(tokenisers["target"]), *(always or ())}), table)
        except InputError as reason:
            raise InputError(replace(reason.diagnostics[0], location=Location(str(path)))) from None

    def map_lines(self) -> Iterator[str]:
        """The lines of a vocabulary map of CTranslate2, without line feeds. Tokens with spaces or line breaks are left out: a
        map cannot have them."""
        names = [
            {number: piece for piece, number in self.tokenisers[column].vocabulary.items() if not SEPARATORS & {*piece}}
            for column in ("source", "target")
        ]
        for ngram, targets in [((), self.always), *self.rows.items()]:
            pieces = [names[0].get(number) for number in ngram]
            if None not in pieces:
                wanted = (names[1][number] for number in targets.tolist() if number in names[1])
                yield f"{' '.join(filter(None, pieces))}\t{' '.join(wanted)}"

    def save(self, path: str | Path) -> None:
        """Write the shortlist to a file, which is replaced as a whole. Raises OSError."""
        width = self.lengths[-1] if self.lengths else 1
        ngrams = [[*ngram, *[-1] * (width - len(ngram))] for ngram in self.rows]
        counts = torch.tensor([len(targets) for targets in self.rows.values()], dtype=torch.int64, device="cpu")
        digests = [bytes.fromhex(self.tokenisers[column].digest) for column in ("source", "target")]
        tensors = {
            "tokenisers": torch.tensor([list(digest) for digest in digests], dtype=torch.uint8, device="cpu"),
            "always": self.always.to(torch.int32),
            "ngrams": torch.tensor(ngrams, dtype=torch.int32, device="cpu").view(len(ngrams), width),
            "ends": counts.cumsum(0),
            "targets": torch.cat([self.always[:0], *self.rows.values()]).to(torch.int32),
        }
        write_whole(path, save(tensors))

    @classmethod
    def load(cls, path: str | Path, tokenisers: Mapping[str, TextTokeniser]) -> Shortlist:
        """Read a file that `save` wrote.

        Args:
            path: The file, not a link.
            tokenisers: Those of the model.

        Returns:
            The shortlist.

        Raises:
            StoreError: The file is missing or damaged.
            InputError: It is the shortlist of other tokenisers.
        """
        path = Path(path)
        if not os.path.lexists(path):
            fix = "`tfkit shortlist MODEL SOURCE TARGET` learns one from the training text"
            raise StoreError(Diagnostic("TFK082", f"{path} cannot be read: No such file or directory", fix))
        header = read_header(path)
        if {name: dtype for name, (dtype, _) in header.items()} != DTYPES:
            raise _damaged(path, f"its tensors are not {', '.join(DTYPES)}")
        shapes = {name: shape for name, (_, shape) in header.items()}
        sizes = [shapes["tokenisers"], *(len(shapes[name]) for name in ("always", "ngrams", "targets")), shapes["ends"]]
        if sizes != [(2, 32), 1, 2, 1, shapes["ngrams"][:1]] or not 1 <= shapes["ngrams"][1] <= MAX_NGRAM:
            raise _damaged(path, "its tensors have other shapes than those of a shortlist")
        try:
            [targets], [longest] = shapes["targets"], shapes["always"]
            _check_size(shapes["ngrams"][0], targets, longest, tokenisers["target"])
            tensors = load_file(path)
        except InputError as reason:
            raise _damaged(path, reason.diagnostics[0].message) from None
        except (SafetensorError, OSError) as reason:
            raise _damaged(path, str(reason)) from None
        always, ngrams, ends, ids = (tensors[name] for name in ("always", "ngrams", "ends", "targets"))
        starts = torch.cat([ends.new_zeros(1), ends])
        if bool((starts[1:] < starts[:-1]).any()) or int(starts[-1]) != len(ids):
            raise _damaged(path, "the ends of its rows do not divide its target ids")
        for column, digest in zip(("source", "target"), tensors["tokenisers"].tolist(), strict=True):
            if bytes(digest).hex() != tokenisers[column].digest:
                raise _other(f"{path} is the shortlist of another tokeniser of the {column} than the model has")
        keys = [tuple(number for number in ngram if number != -1) for ngram in ngrams.tolist()]
        if len({*keys}) < len(keys) or () in keys:
            raise _damaged(path, "an n-gram is empty or has two rows")
        parts = torch.split(ids, (starts[1:] - starts[:-1]).tolist())
        try:
            return cls(tokenisers, always, dict(zip(keys, parts, strict=True)))
        except InputError as reason:
            raise _damaged(path, reason.diagnostics[0].message) from None


def _encoded(tokenisers: Mapping[str, TextTokeniser], source: str | Path, target: str | Path) -> Pairs:
    """The ids of the lines of two files, without the special tokens around them."""
    for group in groups(rows(source, target), GROUP):
        sources, targets = zip(*group, strict=True)
        yield from zip(tokenisers["source"].encode(sources), tokenisers["target"].encode(targets), strict=True)


def _specials(target: TextTokeniser) -> set[int]:
    """The ids that CTranslate2 gives to every source: start, end and unknown token, if the tokeniser has them."""
    ids = target.node_ids
    return {ids.get("start_id"), ids.get("end_id"), target.unknown_token_id} - {None}  # type: ignore[return-value]


def _check_size(rows: int, targets: int, longest: int, target: TextTokeniser) -> None:
    if rows > MAX_ROWS or targets > MAX_TARGETS or longest > target.size:
        message = (
            f"a shortlist of {rows:,} n-grams with {targets:,} target ids; at most {MAX_ROWS:,} and {MAX_TARGETS:,} are read"
        )
        if longest > target.size:
            message = f"a shortlist has {longest:,} ids in a row, and the vocabulary of the target {target.size:,}"
        raise InputError(Diagnostic("TFK139", message, "leave out the least likely ones"))


def _check_ids(column: str, ids: Tensor, tokeniser: TextTokeniser) -> None:
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < tokeniser.size:
        beyond = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        message = f"the shortlist holds the id {beyond} of the {column}"
        raise InputError(Diagnostic("TFK072", message, f"its ids are 0..{tokeniser.size - 1}"))


def _id_of(piece: str, vocabulary: Mapping[str, int], column: str, place: Location) -> int:
    number = vocabulary.get(piece)
    if number is None:
        message = f"{piece[:80]!a} is no token of the {column}"
        raise InputError(Diagnostic("TFK139", message, "take the map of this model's vocabularies", location=place))
    return number


def _other(message: str) -> InputError:
    return InputError(Diagnostic("TFK106", message, "learn or import it again: `tfkit shortlist MODEL ...`"))


def _damaged(path: Path, reason: str) -> StoreError:
    return StoreError(Diagnostic("TFK082", f"{path} holds no shortlist: {reason}", "it was altered; learn it again"))
