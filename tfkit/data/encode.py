"""Encodes text files as corpora of ids, without the rows that exceed a limit."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import Diagnostic, InputError, Location
from ..recipe import Recipe
from .aligned_rows import AlignedRows
from .corpus import GOLD, LINKS, NO_LABEL, TAGS, CorpusWriter
from .corpus_facts import CorpusCounts, NormalisedRows
from .corpus_row import Numbered, Row
from .kinds import KINDS
from .spans import SpanFacts
from .tokeniser import TextTokeniser


@dataclass(frozen=True)
class TooLong:
    """A row with more `tokens` than the model has `positions`; it ends in `line`."""

    path: str
    line: int
    tokens: int
    positions: int

    def diagnostic(self, filtered: bool) -> Diagnostic:
        """The error. `filtered`: whether `batching.max_length` leaves long rows out."""
        message = f"a row of {self.tokens:,} tokens ends here, and the model has {self.positions:,} positions"
        short = f"write `batching.max_length: {self.positions}`" if filtered else "shorten the line, or remove it"
        fix = f"{short}, or write a larger `max_len` in the spec"
        return Diagnostic("TFK061", message, fix, "batching.max_length" if filtered else "", Location(self.path, self.line))


LONGEST_UNBATCHED = 1024
"""Rows of validation may have as many tokens as a batch, and at least so many."""


@dataclass(frozen=True)
class Normalisation:
    """What a tokeniser of tfkit changes in a text before it divides it: the Unicode `form`, unless it is "", and `spaces`, if
    white space becomes plain spaces. Lower case and runs of plain spaces do not count."""

    form: Any
    spaces: bool

    @classmethod
    def of(cls, tokeniser: TextTokeniser, sentences: bool) -> Normalisation:
        """The rules of a tokeniser; none of an imported one, whose steps may be any."""
        if tokeniser.imported:
            return cls("", False)
        settings = tokeniser.settings
        form = "" if settings["normalise"] == "none" else settings["normalise"].upper()
        return cls(form, sentences and settings["kind"] != "characters")

    def changes(self, text: str) -> bool:
        """Whether a text is changed."""
        if self.form and not all(unicodedata.is_normalized(self.form, part) for part in _parts(text)):
            return True
        return self.spaces and OTHER_SPACE.search(text.strip()) is not None

    def example(self, text: str) -> tuple[str, str]:
        """The first character of a text, with its marks, that is changed, and what it becomes."""
        if not self.form:
            return OTHER_SPACE.findall(text.strip())[0], " "
        changed = next((part for part in _parts(text) if not unicodedata.is_normalized(self.form, part)), "")
        starts = [at for at, letter in enumerate(changed) if not unicodedata.combining(letter)]
        for start, end in pairwise([*starts, len(changed)]):
            after = unicodedata.normalize(self.form, changed[start:end])
            if after != changed[start:end]:
                return changed[start:end], after
        space = OTHER_SPACE.search(text.strip()) if self.spaces and not changed else None
        return (space[0], " ") if space else (changed, unicodedata.normalize(self.form, changed))  # letters that are composed


PART = 500


def _parts(text: str) -> Iterator[str]:
    """A text in parts that begin with a letter where they can: normalising takes a time that grows with the square of the marks
    behind one letter."""
    start = 0
    while start < len(text):
        end = start + PART
        while end < min(len(text), start + 2 * PART) and unicodedata.combining(text[end]):
            end += 1
        yield text[start:end]
        start = end


OTHER_SPACE = re.compile(r"[^\S ]")


@dataclass(frozen=True)
class SelectedRows:
    """Rows of text files to encode.

    Attributes:
        files: The text files, by column.
        rows: Their selected rows.
        held_out: Whether to leave out rows that are longer than the model's positions or than a batch; otherwise they raise
            InputError.
        links: The file of links of the words of all rows, if they have one.
        prefix: What was put before every source.
    """

    files: Mapping[str, str]
    rows: Numbered
    held_out: bool = False
    links: str | None = None
    prefix: str | None = None


class CorpusEncoder:
    """Encodes text files and writes the rows as corpora."""

    def __init__(
        self, recipe: Recipe, tokenisers: Mapping[str, TextTokeniser], labels: list[str], positions: Mapping[str, int]
    ) -> None:
        self.recipe, self.tokenisers, self.positions = recipe, tokenisers, positions
        self.kind = KINDS[recipe.data.kind]
        self.longest_answer, self.unanswerable = 1, False
        self.label_numbers = {label: number for number, label in enumerate(labels)}

    def __call__(self, parts: Sequence[SelectedRows], path: Path, filtered: bool, linked: bool = False) -> list[CorpusCounts]:
        """Write a corpus of one part or several; returns the counts of the rows of each, and the digest of all with the first.
        `filtered`: rows that exceed a limit of the recipe are left out, as from training data. `linked`: a filtered corpus has
        links of tokens, another those of words. Parts without a file of links have none."""
        names = tuple(self.kind.files)
        texts = () if filtered else tuple(f"{column}_text" for column in names)
        columns = (*names, TAGS) if self.kind.tagged else names
        columns += (LINKS if filtered else GOLD,) if linked else ()
        writer = CorpusWriter(path, columns, texts, self.kind.numbers)
        counts = [self._write(part, writer, filtered, linked) for part in parts]
        counts[0].digest = writer.close()
        return counts

    def _write(self, part: SelectedRows, writer: CorpusWriter, filtered: bool, linked: bool) -> CorpusCounts:
        """Write the rows of a part; returns their counts."""
        counted, files = CorpusCounts(), part.files
        rows_before, tokens_before = writer.rows, dict(writer.tokens)
        aligned = None if part.links is None else AlignedRows(part.links, self.tokenisers, part.prefix)
        assert self.kind.encode is not None, "images have a writer of their own"
        for row in self.kind.encode(self._normalised(part.rows, files, counted), self.tokenisers, self.recipe):
            counted.read += 1
            reason = self._reason(row) if filtered else None
            if reason is None and (too_long := self._too_long(row, files)) is not None:
                if not part.held_out:
                    raise InputError(too_long.diagnostic(filtered))
                reason = f"longer than the {too_long.positions:,} positions of the model"
            if reason is None and not filtered and (count := max(map(len, row.ids))) > self.longest:
                if not part.held_out:
                    raise InputError(self._beyond_a_batch(count, Location(next(iter(files.values())), row.line)))
                reason = f"longer than {self.longest:,} tokens, which a batch of validation has at most"
            if reason is not None:
                counted.leave_out(reason, row.line)
                continue
            values: dict[str, Any] = dict(zip(files, row.ids, strict=True))
            values |= {f"{column}_text": text for column, text in zip(files, row.texts, strict=True)}
            if linked:
                links = [] if aligned is None else aligned.tokens(row) if filtered else aligned.words(row)
                values[LINKS if filtered else GOLD] = links
            writer.add(values | self._label(row, files))
            if filtered and row.span is not None:
                self.longest_answer = max(self.longest_answer, row.span[1] - row.span[0] + 1)
                self.unanswerable |= not row.answerable
        counted.tokens = {column: writer.tokens[column] - tokens_before[column] for column in files}
        counted.kept = writer.rows - rows_before
        return counted

    def _normalised(self, numbered: Numbered, files: Mapping[str, str], counted: CorpusCounts) -> Numbered:
        """The same texts, of which those are counted that the tokenisers normalise to others."""
        columns = list(files) if len(files) == self.kind.texts else list(files) * self.kind.texts
        rules = {column: Normalisation.of(self.tokenisers[column], self.kind.sentences) for column in files}
        for number, texts in numbered:
            changed = {column: text for column, text in zip(columns, texts, strict=False) if rules[column].changes(text)}
            for column, text in changed.items():
                if column not in counted.normalised:
                    counted.normalised[column] = NormalisedRows.first(
                        self.kind.line(number, texts), *rules[column].example(text)
                    )
                counted.normalised[column].rows += 1
            yield number, texts

    @property
    def longest(self) -> int:
        """The most tokens of a row of validation: its memory may grow with their square."""
        return max(self.recipe.batching.tokens, self.recipe.batching.max_length, LONGEST_UNBATCHED)

    def _beyond_a_batch(self, tokens: int, location: Location) -> Diagnostic:
        message = f"a row of {tokens:,} tokens ends here, and a batch of validation has at most {self.longest:,}"
        return Diagnostic("TFK101", message, "divide the line, or write a larger `batching.tokens`", location=location)

    @property
    def span_facts(self) -> SpanFacts | None:
        """How a model that answers questions is trained; None for other kinds of data."""
        if not self.kind.spans:
            return None
        limits = {"max_length": self.recipe.batching.max_length, "stride": self.recipe.data.options.stride}
        return SpanFacts(**limits, max_answer=self.longest_answer, unanswerable=self.unanswerable)

    def _label(self, row: Row, files: Mapping[str, str]) -> dict[str, Any]:
        """The labels of a row, by column of the corpus."""
        if row.random is not None:
            return {"random": int(row.random)}
        if row.span is not None:
            return dict(zip(self.kind.numbers, row.span, strict=True))
        path = next(iter(files.values()))
        if row.tags is not None:
            return {TAGS: [NO_LABEL if tag is None else self._number(tag[0], Location(path, tag[1])) for tag in row.tags]}
        return {} if row.label is None else {"label": self._number(row.label, Location(path, row.line))}

    def _number(self, label: str, location: Location) -> int:
        """The number of a label. Raises InputError if it is unknown."""
        if label not in self.label_numbers:
            known = ", ".join(f"`{known_label}`" for known_label in list(self.label_numbers)[:8])
            message = f"the label `{label}` is not in the training table"
            raise InputError(Diagnostic("TFK115", message, f"known: {known}", location=location))
        return self.label_numbers[label]

    def _too_long(self, row: Row, files: Mapping[str, str]) -> TooLong | None:
        """The first side of a row that is longer than the positions of the model, if any."""
        for column, ids in zip(files, row.ids, strict=True):
            tokens = len(ids) - (not self.kind.sentences)  # the last token of running text is a label only
            if tokens > self.positions.get(column, tokens):
                return TooLong(files[column], row.line, tokens, self.positions[column])
        return None

    def _reason(self, row: Row) -> str | None:
        """The reason to leave a row out, or None to keep it."""
        if row.unfit is not None:
            return row.unfit
        limits = self.recipe.batching
        if not self.kind.sentences:
            return None
        if not min(row.bare):
            return "with an empty side" if max(row.bare) else "empty"
        longest = max(map(len, row.ids))
        if longest > limits.max_length:
            return f"longer than {limits.max_length} tokens"
        if limits.max_ratio is not None and longest > limits.max_ratio * min(map(len, row.ids)):
            return f"of which one side is more than {limits.max_ratio:g} times as long"
        return None
