"""The vocabularies of an exported model: the engine reads and writes tokens, not ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SIDES = {"source": "source.json", "target": "target.json"}
"""The tokenisers of a model with two vocabularies. Other models have `tokeniser.json`."""


def tokeniser_of(texts: Mapping[str, str], side: str) -> str | None:
    """The tokeniser of one side, as JSON; None if the model was saved without tokenisers."""
    return texts.get("tokeniser.json", texts.get(SIDES[side]))


def vocabulary(tokeniser: str | None, size: int) -> list[str]:
    """A distinct token for each id: the tokeniser's piece; `<7>` for an id without one.

    Args:
        tokeniser: the JSON of the `tokenizers` library, or None.
        size: the number of ids of the model.
    """
    pieces = _pieces(json.loads(tokeniser)) if tokeniser else {}
    taken, found = set(pieces.values()), []
    for number in range(size):
        name = pieces.get(number)
        if name is None:
            name = f"<{number}>"
            while name in taken:
                name = f"<{name}>"
        found.append(name)
    return found


def unknown(tokeniser: str | None) -> str | None:
    """The token of unknown text."""
    if tokeniser is None:
        return None
    model = json.loads(tokeniser)["model"]
    found = model.get("unk_token")
    if found is None and model.get("unk_id") is not None:
        found = _pieces({"model": model})[model["unk_id"]]
    return found or next((name for name in _pieces({"model": model}).values() if name == "<unk>"), None)


def _pieces(data: Mapping[str, Any]) -> dict[int, str]:
    vocab = data["model"]["vocab"]
    pieces = {number: name for number, (name, _) in enumerate(vocab)} if isinstance(vocab, list) else {}
    if isinstance(vocab, dict):
        pieces = {number: name for name, number in vocab.items()}
    return pieces | {each["id"]: each["content"] for each in data.get("added_tokens") or ()}
