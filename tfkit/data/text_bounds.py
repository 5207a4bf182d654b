"""How long a text may be that the library of tokenisers reads: its memory and its time are not bounded otherwise.

A text may grow before it is split: NFKC writes 18 characters for U+FDFA, and a step of an imported tokeniser 64 for one. The
library takes up to 370 bytes of memory for each byte of the text that it splits. The time for a byte depends on the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

from tokenizers import Tokenizer

from ..errors import Diagnostic, InputError, Location
from ..errors.arguments import check_characters, check_texts
from .huggingface_steps import faster, normaliser_growth
from .symbols import is_step
from .tokeniser_file import SEQUENCES

MAX_BYTES = 1 << 20
"""The most bytes of UTF-8 of a text, as it is written and after each step of the normaliser."""
MAX_WORK = 1 << 30
"""The most bytes of all pieces that are looked up for a text: 2 seconds of processor time."""
WORD_WORK = 24
"""WordPiece takes the time of so many bytes of pieces for each character of a word and each character of the longest word."""
CALL_BYTES = 4 << 20
"""The most bytes of the texts of one call of the library, if each grew as much as any can."""
CHUNK = 1024
"""The characters that are normalised at once to find out how long a text becomes."""
_ANCHORED = ({"Regex": "^▁+$"},)


class TextBounds:
    """The bounds of the texts of a tokeniser.

    Args:
        normaliser: The normaliser of a checked tokeniser file, in the format of the library.
        model: Its model; None while the tokeniser is trained.

    Attributes:
        limit: The most bytes of a text, before and after each step of the normaliser.
    """

    def __init__(self, normaliser: Mapping[str, Any] | None, model: Mapping[str, Any] | None = None) -> None:
        self._steps = [step for step in normaliser_steps(normaliser) if not is_step(step, "normalizer")]
        self._growth = prod(map(normaliser_growth, self._steps))
        self.limit = min(MAX_BYTES, MAX_WORK // _work(model))

    def check(self, text: str, share: int = 1, location: Location | None = None) -> None:
        """Raises InputError for a text that is no UTF-8, or longer than `1 / share` of the limit; `location` is its place."""
        check_characters(text, "TFK104", "a text", "decode its bytes as UTF-8, without `surrogateescape`")
        limit = self.limit // share
        if 4 * len(text) * self._growth <= limit:
            return
        size = 0
        for at in range(0, len(text), CHUNK):
            size += self._size(text[at : at + CHUNK])
            if size > limit:
                message = f"a text of {len(text):,} characters becomes more than {limit:,} bytes, the limit of this tokeniser"
                raise InputError(Diagnostic("TFK101", message, "divide the text", location=location))

    def calls(self, texts: Sequence[str], share: int = 1) -> Iterator[list[str]]:
        """The texts of each call of the library. Raises InputError as `check`."""
        group: list[str] = []
        room = CALL_BYTES
        check_texts(texts)
        for text in texts:
            self.check(text, share)
            size = 4 * len(text) * self._growth
            if group and size > room:
                yield group
                group, room = [], CALL_BYTES
            group.append(text)
            room -= size
        if group:
            yield group

    def _size(self, text: str) -> int:
        """The most bytes that a part of a text has before or after a step of the normaliser."""
        sizes = [len(text.encode())]
        for step in self._growing:
            text = step.normalize_str(text)
            sizes.append(len(text.encode()))
        return max(sizes)

    @cached_property
    def _growing(self) -> list[Any]:
        """The steps as objects of the library, without those that shorten a text at its ends: a part of it has other ends."""
        return [_step(step) for step in self._steps if step["type"] != "Strip" and step.get("pattern") not in _ANCHORED]


def normaliser_steps(normaliser: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a normaliser, in the format of the library, without the sequences that hold them."""
    if normaliser is not None and normaliser["type"] != "Sequence":
        yield normaliser
    for step in (normaliser or {}).get(SEQUENCES["normalizer"], ()):
        yield from normaliser_steps(step)


def _step(step: Mapping[str, Any]) -> Any:
    parts = dict.fromkeys(("truncation", "padding", "pre_tokenizer", "post_processor", "decoder"))
    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    whole = {"version": "1.0", **parts, "added_tokens": [], "normalizer": faster(step), "model": model}
    return Tokenizer.from_str(json.dumps(whole, allow_nan=False)).normalizer


def _work(model: Mapping[str, Any] | None) -> int:
    """The bytes of pieces that are looked up for a byte of a text, at most."""
    if model is None or model["type"] not in ("WordPiece", "Unigram"):
        return 1
    if model["type"] == "WordPiece":
        return WORD_WORK * int(model["max_input_chars_per_word"])
    return longest_chain(piece for piece, _ in model["vocab"])


def longest_chain(pieces: Iterable[str]) -> int:
    """The most bytes of pieces that may all start at one place of a text: each starts with the one before it."""
    chain: list[bytes] = []
    most = total = 1
    for piece in sorted(text.encode() for text in pieces):
        while chain and not piece.startswith(chain[-1]):
            total -= len(chain.pop())
        chain.append(piece)
        total += len(piece)
        most = max(most, total)
    return most
