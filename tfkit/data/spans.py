"""Rows of questions about texts: `<s> question </s> window of the context </s>`, and the positions where the answer starts and
ends.

A context that is too long is read in windows, each at most `stride` tokens and at most half a window after the previous one. A
window without the whole answer has the first token as its answer. https://aclanthology.org/N19-1423/, section 4.2
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ..errors import Diagnostic, InputError, Location
from ..files import FileModel, read_model
from ..recipe import Recipe
from .corpus_row import Numbered, Row
from .questions import location_of
from .text_lines import groups
from .tokeniser import Ranges, TextTokeniser

MAX_READS = 16
"""The most windows that may read one token of a context."""
CONTEXTS = 200
"""Contexts encoded in one call: their pieces with their places take more memory than ids."""
SPANS = "spans.json"
"""The name of the file of `SpanFacts` in the directory of a model."""


class SpanFacts(FileModel):
    """How a model that answers questions was trained: the limit of a row and the stride, the tokens of the longest answer, and
    whether there were unanswerable questions."""

    max_length: Annotated[int, Field(ge=4, le=1 << 30)]
    stride: Annotated[int, Field(ge=1, le=1 << 30)]
    max_answer: Annotated[int, Field(ge=1, le=1 << 30)]
    unanswerable: bool


def windows_of(question: int, context: int, room: int, stride: int, location: Location | None = None) -> list[range]:
    """The windows of a context, as ranges of its tokens, at least one. A row has `room` tokens for question and window; a
    window starts at most `stride` tokens after the one before. Raises InputError, at the place of the question in its file, if
    the question leaves no room, or the windows would read the context too often."""
    if question >= room:
        message = f"the question has {question:,} tokens, and a row has room for {room:,} with its context"
        raise InputError(Diagnostic("TFK136", message, "shorten the question, or allow longer rows", location=location))
    room -= question
    step = min(stride, -(-room // 2))
    if context > room > step * MAX_READS:
        message = f"windows of {room:,} tokens, {step:,} from one to the next, read each token {room // step:,} times"
        fix = f"write a stride of at least {-(-room // MAX_READS)}: at most {MAX_READS} times"
        raise InputError(Diagnostic("TFK136", message, fix, location=location))
    starts = range(0, max(1, context - room + step), step)
    return [range(start, min(start + room, context)) for start in starts]


def span_of(ranges: Ranges, start: int, end: int) -> range:
    """The pieces that have a character from `start` to `end` - 1; empty if no piece has one."""
    inside = [at for at, (first, last) in enumerate(ranges) if first < end and last > start]
    return range(inside[0], inside[-1] + 1) if inside else range(0)


def span_rows(numbered: Numbered, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Iterator[Row]:
    """The rows of questions. The text of the first row of a question is JSON with the question, its context and its answers;
    further rows have none."""
    tokeniser, options = tokenisers["target"], recipe.data.options
    frame = tokeniser.pair_frame
    special = len(frame.before) + len(frame.between)
    for group in groups(numbered, CONTEXTS):
        asked = tokeniser.encode([texts[0] for _, texts in group])
        read = tokeniser.encode_with_ranges([texts[1] for _, texts in group])
        for (_, texts), question, (ids, ranges) in zip(group, asked, read, strict=True):
            location, answers = location_of(texts), json.loads(texts[2])
            whole = span_of(ranges, answers[0][1], answers[0][1] + len(answers[0][0])) if answers else range(0)
            windows = windows_of(len(question), len(ids), recipe.batching.max_length - len(frame), options.stride, location)
            held = [_inside(whole, window, special + len(question)) for window in windows]
            told = json.dumps(
                {"question": texts[0], "context": texts[1], "answers": [text for text, _ in answers]}, allow_nan=False
            )
            for number, (window, span) in enumerate(zip(windows, held, strict=True)):
                row = frame(question, ids[window.start : window.stop])
                unfit = "whose answer is in no window" if answers and not any(held) else None
                yield Row(
                    location.line, ("" if number else told,), (row,), (len(question), len(window)),
                    span=span or (0, 0), answerable=bool(answers), unfit=unfit,
                )  # fmt: skip


def _inside(span: range, window: range, before: int) -> tuple[int, int] | None:
    """The first and the last position of a span in a row with `before` tokens before its window; None if the window does not
    have the whole span."""
    if not span or span.start < window.start or span.stop > window.stop:
        return None
    return before + span.start - window.start, before + span.stop - 1 - window.start


def span_texts(facts: SpanFacts | None) -> dict[str, str]:
    """The file of a model that answers questions, by its name; nothing for other models."""
    return {} if facts is None else {SPANS: facts.model_dump_json() + "\n"}


def read_span_facts(directory: Path) -> SpanFacts:
    """The facts of the model in a directory. Raises InputError if there are none, StoreError if the file is damaged."""
    path = directory / SPANS
    if not os.path.lexists(path):
        message = f"{path} cannot be read: No such file or directory"
        raise InputError(Diagnostic("TFK116", message, "name a model that `tfkit train` wrote for data of kind `spans`"))
    return read_model(path, SpanFacts)


def asked_questions(texts: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    """Questions, contexts and answers from the texts of the rows of a corpus."""
    rows = [json.loads(text) for text in texts if text]
    return [(row["question"], row["context"], row["answers"]) for row in rows]
