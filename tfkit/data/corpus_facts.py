"""`facts.json`, in the directory of the corpora: the counts of the rows of each corpus, and the labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..files import FileModel, read_model
from .labels import check_labels
from .sources import Source
from .spans import SpanFacts

FACTS = "facts.json"
_Whole = Annotated[int, Field(ge=0, lt=1 << 53)]
_Reasons = Annotated[dict[Annotated[str, Field(max_length=200)], _Whole], Field(max_length=20)]
"""Counts by the reasons to leave a row out, which are printed."""


MAX_EXAMPLE = 20
_Example = Annotated[str, Field(max_length=MAX_EXAMPLE)]


class NormalisedRows(BaseModel):
    """The rows that normalisation changed. Lower case and runs of spaces do not count.

    Attributes:
        rows: Their number.
        line: The line of the first.
        before: Characters of it that changed, at most `MAX_EXAMPLE`.
        after: What they became.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    rows: _Whole = 0
    line: _Whole
    before: _Example
    after: _Example

    @classmethod
    def first(cls, line: int, before: str, after: str) -> NormalisedRows:
        """The counts before the first row is counted."""
        return cls(line=line, before=before[:MAX_EXAMPLE], after=after[:MAX_EXAMPLE])


class CorpusCounts(BaseModel):
    """The rows of a corpus.

    Attributes:
        read: Rows read.
        kept: Rows in the corpus.
        left_out: Rows left out, by reason.
        first: The line of the first row left out, by reason.
        tokens: Tokens in the corpus, by column.
        digest: Of all ids.
        normalised: Rows that normalisation changed, by column.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    read: _Whole = 0
    kept: _Whole = 0
    left_out: _Reasons = {}
    first: _Reasons = {}
    tokens: dict[str, _Whole] = {}
    digest: str = ""
    normalised: dict[str, NormalisedRows] = {}

    @model_validator(mode="after")
    def _agrees(self) -> CorpusCounts:
        if self.left_out.keys() != self.first.keys():
            raise ValueError("`left_out` and `first` give the same reasons")
        if self.read != (both := self.kept + sum(self.left_out.values())):
            raise ValueError(f"`read` is {self.read:,}, and {both:,} rows were kept or left out")
        return self

    @classmethod
    def total(cls, parts: Sequence[CorpusCounts]) -> CorpusCounts:
        """The counts of several corpora together; lines are those of the first corpus that has one."""
        counted = cls()
        for part in parts:
            counted.read, counted.kept = counted.read + part.read, counted.kept + part.kept
            for reason, count in part.left_out.items():
                counted.left_out[reason] = counted.left_out.get(reason, 0) + count
                counted.first.setdefault(reason, part.first[reason])
            for column, count in part.tokens.items():
                counted.tokens[column] = counted.tokens.get(column, 0) + count
            for column, rows in part.normalised.items():
                before = counted.normalised.get(column)
                both = rows.rows + (before.rows if before else 0)
                counted.normalised[column] = (before or rows).model_copy(update={"rows": both})
        return counted

    def leave_out(self, reason: str, line: int) -> None:
        """Count a row that is left out."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
        self.first.setdefault(reason, line)


class Facts(FileModel):
    """The content of `facts.json`, which `prepare` writes: the labels of a classification, whether it is one of pairs of
    texts, how answers to questions are trained, the counts of each corpus, and of its `parts` if the recipe has
    several corpora, and the files that it was made from."""

    labels: list[str]
    pairs: bool = False
    spans: SpanFacts | None = None
    corpora: dict[str, CorpusCounts]
    parts: dict[str, dict[Annotated[str, Field(max_length=50)], CorpusCounts]] = {}
    sources: dict[str, Source] = {}

    @model_validator(mode="after")
    def _trains(self) -> Facts:
        if not {"train"} <= self.corpora.keys() <= {"train", "validation"}:
            raise ValueError("`corpora` has `train`, and perhaps `validation`")
        if not self.parts.keys() <= self.corpora.keys():
            raise ValueError("`parts` has parts of `train` and `validation`")
        check_labels(self.labels)
        return self


def read_facts(directory: Path) -> Facts:
    """The `facts.json` in a directory of corpora. Raises StoreError."""
    return read_model(directory / FACTS, Facts, fix="start a new run")


def describe_counts(counted: CorpusCounts) -> str:
    """The counts of a corpus, in one line."""
    out = [f"{count:,} {reason} (first: line {counted.first[reason]:,})" for reason, count in counted.left_out.items()]
    changed = [
        f"{rows.rows:,} of {column} (first: line {rows.line:,}, {_numbered(rows.before)} becomes {_numbered(rows.after)})"
        for column, rows in counted.normalised.items()
    ]
    left_out = f"; left out: {', '.join(out)}" if out else ""
    return f"{counted.kept:,} of {counted.read:,} rows{left_out}" + (f"; normalised: {', '.join(changed)}" if changed else "")


def _numbered(text: str) -> str:
    """Characters with their numbers, because many look alike."""
    return f"`{text}` {' '.join(f'U+{ord(letter):04X}' for letter in text[:4])}{'...' if len(text) > 4 else ''}"
