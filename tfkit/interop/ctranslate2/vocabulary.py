"""The vocabularies of an exported model: the engine reads and writes tokens, not ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...errors import Diagnostic, InputError
from ...files import TOKENISER_VALUES, parse_json

SIDES = {"source": "source.json", "target": "target.json"}
"""The tokenisers of a model with two vocabularies. Other models have `tokeniser.json`."""


def tokenisers(texts: Mapping[str, str | bytes]) -> dict[str, str | bytes]:
    """The imported tokenisers as JSON of the `tokenizers` library, by name; a saved model has further facts around it."""
    found: dict[str, str | bytes] = {}
    for name in ("tokeniser.json", *SIDES.values()):
        data = _parsed(name, texts[name]) if name in texts else {}
        if "tokenizer" in data:
            found[name] = json.dumps(data["tokenizer"], ensure_ascii=False, allow_nan=False)
    return found


def _parsed(name: str, content: str | bytes) -> dict[str, Any]:
    try:
        data = parse_json(content, values=TOKENISER_VALUES)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise InputError(Diagnostic("TFK104", f"{name} holds no tokeniser with a vocabulary"))
    return data


class Vocabulary:
    """The pieces of a tokeniser by id.

    Args:
        texts: the other files of a saved model. Without a tokeniser there are no pieces.
        side: `source` or `target`.

    Raises:
        InputError: the tokeniser is not one of the `tokenizers` library.
    """

    def __init__(self, texts: Mapping[str, str | bytes], side: str) -> None:
        name = next((name for name in ("tokeniser.json", SIDES[side]) if name in texts), None)
        self.pieces: dict[int, str] = {}
        self.unknown: str | None = None
        self.frames = False
        """Whether the tokeniser itself puts special tokens around a text."""
        if name is not None:
            data = _parsed(name, texts[name])
            try:
                self._read(data.get("tokenizer", data))
            except (ValueError, LookupError, TypeError, AttributeError):
                raise InputError(Diagnostic("TFK104", f"{name} holds no tokeniser with a vocabulary")) from None

    def _read(self, data: Any) -> None:
        model = data["model"]
        self.frames = data.get("post_processor") is not None
        vocab = model["vocab"]
        numbered = (
            enumerate(piece for piece, _ in vocab) if isinstance(vocab, list) else ((n, piece) for piece, n in vocab.items())
        )
        self.pieces = dict(numbered) | {each["id"]: each["content"] for each in data.get("added_tokens") or ()}
        unknown = model.get("unk_token")
        if unknown is None and model.get("unk_id") is not None:
            unknown = self.pieces[model["unk_id"]]
        if not all(isinstance(piece, str) for piece in [*self.pieces.values(), unknown or ""]):
            raise TypeError
        self.unknown = unknown or ("<unk>" if "<unk>" in self.pieces.values() else None)

    def tokens(self, size: int) -> list[str]:
        """A distinct token for each id below `size`: its piece, or `<7>` for an id without a piece of its own."""
        taken, found = set(self.pieces.values()), dict[str, int]()
        for number in range(size):
            name = self.pieces.get(number)
            if name is None or name in found:
                name = f"<{number}>"
                while name in taken:
                    name = f"<{name}>"
            found[name] = number
        return list(found)
