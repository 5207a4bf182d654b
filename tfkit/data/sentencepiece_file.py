"""A sentencepiece model: the few fields of its protobuf message that a tokeniser needs.

https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

from .tokeniser_file import MAX_IDS, MAX_PIECE

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces."""


@dataclass(frozen=True)
class SentencePiece:
    """A piece, its score and its type."""

    piece: str
    score: float
    type: int


@dataclass(frozen=True)
class SentencePieceModel:
    """A sentencepiece model.

    Attributes:
        pieces: In the order of their ids.
        kind: UNIGRAM, BPE or another number.
        unknown: The id of the unknown piece.
        charsmap: The table of the normaliser.
        prefix: Whether a text starts with a space.
        one_space: Whether runs of spaces become one.
    """

    pieces: tuple[SentencePiece, ...]
    kind: int
    unknown: int
    charsmap: bytes
    prefix: bool
    one_space: bool


MAX_FIELDS = 100_000
"""The most fields of a message, beside the pieces of a model: a symbol of the user is a field."""
MAX_PIECE_FIELDS = 100
MAX_CHARACTERS = 4 << 20
"""Of all pieces: those of BPE are split in every place."""


def parse_sentencepiece(data: bytes, most: int = MAX_IDS) -> SentencePieceModel:
    """Parse a model. Raises ValueError for other bytes, and as soon as there are more than `most` pieces."""
    pieces: list[SentencePiece] = []
    trainer: dict[int, Any] = {}
    normaliser: dict[int, Any] = {}
    characters = 0
    for field, value in _fields(data, most + MAX_FIELDS):
        if field == 1:
            piece = dict(_fields(_message(value), MAX_PIECE_FIELDS))
            if len(pieces) == most:
                raise ValueError(f"it has more than {most:,} pieces")
            if len(number := _message(piece.get(2, bytes(4)))) != 4 or not isfinite(score := struct.unpack("<f", number)[0]):
                raise ValueError(f"piece {len(pieces)} has no score")
            text = _message(piece.get(1, b"")).decode("utf-8")
            characters += len(text)
            if len(text) > MAX_PIECE or characters > MAX_CHARACTERS:
                one = f"piece {len(pieces)} has {len(text):,} characters, and at most {MAX_PIECE} are read"
                raise ValueError(one if len(text) > MAX_PIECE else f"its pieces have more than {MAX_CHARACTERS:,} characters")
            pieces.append(SentencePiece(text, score, _number(piece.get(3, NORMAL))))
        elif (field == 2 and trainer) or (field == 3 and normaliser):
            raise ValueError("it has two of a part that a model has once")
        elif field == 2:
            trainer = dict(_fields(_message(value)))
        elif field == 3:
            normaliser = dict(_fields(_message(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    unknown = [number for number, piece in enumerate(pieces) if piece.type == UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(f"it has {len(unknown)} unknown pieces")
    return SentencePieceModel(
        tuple(pieces),
        _number(trainer.get(3, UNIGRAM)),
        unknown[0],
        _message(normaliser.get(2, b"")),
        bool(normaliser.get(3, 1)),
        bool(normaliser.get(4, 1)),
    )


def _message(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("it is a number, and a message is expected")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError("it is a message, and a number is expected")
    return value


def _fields(data: bytes, most: int = MAX_FIELDS) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, at most so many: numbers, or bytes."""
    at = count = 0
    while at < len(data):
        count += 1
        if count > most:
            raise ValueError(f"a message has more than {most:,} fields")
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"byte {at} is no field of a message")
        if at + size > len(data):
            raise ValueError("it is cut off")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(10):
        if at + count >= len(data):
            raise ValueError("it is cut off")
        byte = data[at + count]
        value |= (byte & 127) << (7 * count)
        if byte < 128:
            return value, at + count + 1
    raise ValueError(f"byte {at} starts a number of more than 10 bytes")
