"""Questions about texts, and their answers: SQuAD's JSON, JSON lines, or a table. https://aclanthology.org/P18-2124/

An answer is a part of its context and starts at a character of it, counted from 0. A question may be unanswerable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..errors import Diagnostic, InputError, Location
from ..files import parse_json, read_text
from .corpus_row import Numbered
from .text_lines import lines

MAX_JSON, MAX_VALUES = 48 << 20, 2_000_000
"""The size limit of a JSON document, in bytes, and the most values that it may hold: SQuAD 2.0 has 42 MB and 1.4 million."""
MAX_ANSWERS = 1_000
"""The most answers of a question: SQuAD has 6."""
COLUMNS = ("question", "context", "answer", "answer_start")
_QUESTION = re.compile(r'"question"\s*:')  # in a string the quotes would be escaped
Answers = list[tuple[str, int]]


def questions(path: str) -> Numbered:
    """The questions of a file, numbered from 0: question, context, answers with their first characters as JSON, and the place.
    Raises InputError for the first wrong one."""
    suffixes = Path(path).suffixes
    records = _squad(path) if suffixes[-1:] == [".json"] else _json_lines(path) if ".jsonl" in suffixes else _table(path)
    number = -1
    for number, (record, location) in enumerate(records):
        question, context = (_text(record, name, location) for name in COLUMNS[:2])
        answers = _answers(record, location)
        for answer, start in answers:
            _check_place(context, answer, start, location)
        yield number, (question, context, json.dumps(answers, allow_nan=False), f"{location.line} {location.column} {path}")
    if number < 0:
        raise InputError(Diagnostic("TFK103", f"{path}: there is no question to read"))


def location_of(texts: tuple[str, ...]) -> Location:
    """The place of a question that `questions` gave."""
    line, column, path = texts[-1].split(" ", 2)
    return Location(path, int(line), int(column))


def _wrong(message: str, fix: str, location: Location) -> InputError:
    return InputError(Diagnostic("TFK135", message, fix, location=location))


def _squad(path: str) -> Iterator[tuple[Mapping[str, Any], Location]]:
    """The questions of a document `{"data": [{"paragraphs": [{"context": .., "qas": [{"question": .., "answers": ..}]}]}]}`."""
    try:
        text = read_text(path, MAX_JSON)
    except OSError as reason:
        fix = "write JSON lines, one question on each line, in a file `.jsonl`"
        raise InputError(Diagnostic("TFK100", f"{path} cannot be read: {reason.strerror or reason}", fix)) from None
    try:
        document = parse_json(text.removeprefix("\ufeff"), values=MAX_VALUES)
    except ValueError as reason:
        fix = "SQuAD's form is one JSON document; name a file of JSON lines `.jsonl`"
        raise _wrong(f"it is not valid JSON: {reason}", fix, Location(path)) from None
    records = [
        {**qa, "context": paragraph.get("context")}
        for article in _objects(document, "data", path)
        for paragraph in _objects(article, "paragraphs", path)
        for qa in _objects(paragraph, "qas", path)
    ]
    places = [match.start() for match in _QUESTION.finditer(text)]
    line, start = 1, 0
    for record, place in zip_longest(records, places if len(places) == len(records) else ()):
        if place is not None:
            line += text.count("\n", start, place)
            start = place
        yield record, Location(path, line, 1 if place is None else place - text.rfind("\n", 0, place))


def _objects(value: Any, key: str, path: str) -> list[Mapping[str, Any]]:
    """The objects in the list `key` of an object."""
    objects = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(objects, list) or not all(isinstance(entry, Mapping) for entry in objects):
        fix = 'SQuAD\'s form is {"data": [{"paragraphs": [{"context": .., "qas": [..]}]}]}; name a file of JSON lines `.jsonl`'
        raise _wrong(f"`{key}` is no list of objects", fix, Location(path))
    return objects


def _json_lines(path: str) -> Iterator[tuple[Mapping[str, Any], Location]]:
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        location = Location(path, number)
        try:
            record = parse_json(line)
        except ValueError as reason:
            raise _wrong(f"the line is not valid JSON: {reason}", "write one object on each line", location) from None
        if not isinstance(record, Mapping):
            raise _wrong(
                "the line is no object of JSON",
                'write {"question": .., "context": .., "answer": .., "answer_start": ..}',
                location,
            )
        yield record, location


def _table(path: str) -> Iterator[tuple[Mapping[str, Any], Location]]:
    rows = lines(path)
    names = [name.strip() for name in next(rows, "").split("\t")]
    missing = [f"`{name}`" for name in COLUMNS if name not in names]
    if missing:
        message = f"the table has no column {', '.join(missing)}"
        fix = f"name the columns in the first line, with tabs between them: {' '.join(COLUMNS)}; or write JSON lines, `.jsonl`"
        raise _wrong(message, fix, Location(path))
    if twice := [f"`{name}`" for name in COLUMNS if names.count(name) > 1]:
        raise _wrong(
            f"two columns are named {', '.join(twice)}", "name each column differently in the first line", Location(path)
        )
    for number, line in enumerate(rows, 2):
        cells, location = line.split("\t"), Location(path, number)
        if not line.strip():
            continue
        if len(cells) != len(names):
            message = f"the line has {len(cells)} columns, line 1 has {len(names)}"
            raise _wrong(message, "is there a tab inside a text? write a space for it", location)
        record: dict[str, Any] = dict(zip(names, cells, strict=True))
        start = record["answer_start"].strip()
        record["answer_start"] = int(start) if start.isascii() and start.isdecimal() and len(start) < 10 else start
        yield record, location


def _text(record: Mapping[str, Any], name: str, location: Location) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        message = f"`{name}` is missing" if value is None else f"`{name}` is no text"
        raise _wrong(message, 'a question has the keys "question", "context", "answer" and "answer_start"', location)
    return value


def _answers(record: Mapping[str, Any], location: Location) -> Answers:
    """The answers of a question: `answer` and `answer_start`, or `answers`, as a list of objects with `text` and `answer_start`
    or as an object with these two lists."""
    pairs: list[tuple[Any, Any]] = []
    if "answers" in record:
        answers = record["answers"]
        if isinstance(answers, Mapping):
            answers = [dict(zip(answers, row, strict=False)) for row in zip_longest(*_lists(answers, location))]
        if not isinstance(answers, list) or not all(isinstance(answer, Mapping) for answer in answers):
            raise _wrong("`answers` is no list of objects", 'write [{"text": .., "answer_start": ..}]', location)
        pairs = [(answer.get("text"), answer.get("answer_start")) for answer in answers]
    elif "answer" not in record:
        fix = 'write "answer" and "answer_start"; an answer "" is one of a question that has none'
        raise _wrong("`answer` is missing", fix, location)
    elif record["answer"] != "":
        pairs = [(record["answer"], record.get("answer_start"))]
    if len(pairs) > MAX_ANSWERS:
        message = f"the question has {len(pairs):,} answers, and at most {MAX_ANSWERS:,} are read"
        raise _wrong(message, "leave out equal ones", location)
    for text, start in pairs:
        if not isinstance(text, str) or not text:
            raise _wrong("an answer has no text", 'a question without an answer has no answers, or the answer ""', location)
        if type(start) is not int or start < 0:
            message = f"the start of the answer {_shown(text)} is `{json.dumps(start, allow_nan=False)[:60]}`"
            raise _wrong(message, "`answer_start` counts the characters of the context before the answer", location)
    return pairs


def _lists(answers: Mapping[str, Any], location: Location) -> list[list[Any]]:
    if not all(isinstance(column, list) for column in answers.values()):
        raise _wrong("`answers` has a value that is no list", 'write {"text": [..], "answer_start": [..]}', location)
    return list(answers.values())


def _check_place(context: str, answer: str, start: int, location: Location) -> None:
    """Raises InputError for an answer that does not stand at its place."""
    there = context[start : start + len(answer)]
    if there == answer:
        return
    place = context.find(answer)
    fix = f"its first place is {place}" if place >= 0 else "it is nowhere in the context: give a part of the context"
    stands = f"where {_shown(there)} stands" if there else f"beyond the end of the context, {len(context):,}"
    message = f"the answer {_shown(answer)} is said to start at character {start:,}, {stands}"
    raise _wrong(message, f"{fix}; characters count from 0", location)


def _shown(text: str) -> str:
    """A text, short, with escapes for line breaks and the like."""
    quoted = json.dumps(text if len(text) <= 60 else f"{text[:57]}...", ensure_ascii=False, allow_nan=False)
    return f"`{quoted[1:-1]}`"
