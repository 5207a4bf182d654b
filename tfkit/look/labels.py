"""Tokens as short pieces of text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..data import TextTokeniser

LONGEST = 60
"""The largest number of characters of a label. Of a longer token the first ones are shown."""
SPACES = {" ": "␣", "\n": "⏎", "\t": "⇥"}
UNDECODED = "\ufffd"
WORD_START = "▁"
"""The mark of SentencePiece for a piece that starts a word. Other marks of byte pairs (`Ġ`) are shown as this one."""
MOST_BYTES = 4
"""The largest number of tokens of one character, of which each is a byte."""


def labels(tokeniser: TextTokeniser, ids: Sequence[int]) -> tuple[str, ...]:
    """The text of each token. `▁` begins words. Tokens that are bytes of one character show it with their number: `猫 1/3`."""
    return tuple(map(short, _texts(tokeniser, ids)))


def short(label: str, longest: int = LONGEST) -> str:
    """A label of at most `longest` characters."""
    return label if len(label) <= longest else label[: longest - 1] + "…"


def _texts(tokeniser: TextTokeniser, ids: Sequence[int]) -> Iterator[str]:
    special, pieces, at = tokeniser.special_ids, tokeniser.pieces(ids), 0
    while at < len(ids):
        text = pieces[at] if ids[at] in special else tokeniser.decode([ids[at]])
        count = 1 if UNDECODED not in text else _bytes_of_character(tokeniser, ids[at : at + MOST_BYTES])
        if count > 1:
            whole = tokeniser.decode(ids[at : at + count]).strip()
            yield from (f"{whole} {part + 1}/{count}" for part in range(count))
        elif UNDECODED in text:
            yield pieces[at]
        elif text.strip():
            yield WORD_START * pieces[at].startswith(tokeniser.word_mark) + text.strip()
        else:
            yield SPACES.get(text, "␣")
        at += count


def _bytes_of_character(tokeniser: TextTokeniser, ids: Sequence[int]) -> int:
    """The number of tokens of the character that starts here; 1 if they are no character."""
    return next((count for count in range(2, len(ids) + 1) if UNDECODED not in tokeniser.decode(ids[:count])), 1)
