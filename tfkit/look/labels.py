"""Tokens as short pieces of text for people."""

from __future__ import annotations

from collections.abc import Sequence

from ..data import TextTokeniser

LONGEST = 60
"""The largest number of characters of a label. Of a longer token the first ones are shown."""
SPACES = {" ": "␣", "\n": "⏎", "\t": "⇥", "": "∅"}


def labels(tokeniser: TextTokeniser, ids: Sequence[int]) -> tuple[str, ...]:
    """The text of each token; of a token that is part of a character, its piece."""
    special = tokeniser.special_ids
    pieces = tokeniser.pieces(ids)
    return tuple(
        short(piece if number in special else _text(tokeniser, number, piece))
        for number, piece in zip(ids, pieces, strict=True)
    )


def short(label: str) -> str:
    """A label of at most `LONGEST` characters."""
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"


def _text(tokeniser: TextTokeniser, number: int, piece: str) -> str:
    text = piece.replace("▁", " ") if tokeniser.imported is None else tokeniser.decode([number])
    if "\ufffd" in text or not text:
        return piece
    return text.strip() or SPACES.get(text, "␣")
