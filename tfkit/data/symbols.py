"""Symbols of a tokeniser: texts that are one token each, such as `<url>`, never divided or normalised.

In a tokeniser, a symbol is one character of a private plane of Unicode. The first steps of the normaliser write it for the
symbol, the first split makes it a piece of its own, and the last decoder writes the symbol again. So white space around it
stays as it was, and all models of tokenisers have symbols. A text that has this character itself gets U+FFFD in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FIRST = 0xF0000
MAX_SYMBOLS = 100
_RANGE = f"[{chr(FIRST)}-{chr(FIRST + MAX_SYMBOLS - 1)}]"
SPLIT: Mapping[str, Any] = {"type": "Split", "pattern": {"Regex": _RANGE}, "behavior": "Isolated", "invert": False}
"""Makes each symbol a piece of its own."""
NO_SYMBOL: Mapping[str, Any] = {"type": "Replace", "pattern": {"Regex": _RANGE}, "content": "\N{REPLACEMENT CHARACTER}"}
"""Replaces the characters of symbols that a text has itself."""


def characters(symbols: Sequence[str]) -> list[str]:
    """The character of each symbol."""
    return [chr(FIRST + number) for number in range(len(symbols))]


def _replace(one: str, other: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": one}, "content": other}


def first_steps(symbols: Sequence[str]) -> list[Mapping[str, Any]]:
    """The first steps of a normaliser: longer symbols first, which may begin with shorter ones."""
    pairs = sorted(zip(symbols, characters(symbols), strict=True), key=lambda pair: -len(pair[0]))
    return [NO_SYMBOL, *(_replace(symbol, character) for symbol, character in pairs)] if symbols else []


def last_steps(symbols: Sequence[str]) -> list[Mapping[str, Any]]:
    """The last steps of a decoder."""
    return [_replace(character, symbol) for symbol, character in zip(symbols, characters(symbols), strict=True)]


def symbols_in(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """The symbols of the steps of a normaliser, in the order of their characters."""
    contents = {step["content"]: step["pattern"]["String"] for step in steps if _is_symbol(step.get("content"), step)}
    return [contents[character] for character in sorted(contents)]


def is_step(step: Any, part: str) -> bool:
    """Whether a step of a part of a tokeniser, from a file, is one of symbols."""
    if part == "pre_tokenizer":
        return bool(step == SPLIT)
    if part == "normalizer" and step == NO_SYMBOL:
        return True
    if not isinstance(step, Mapping) or step.keys() != {"type", "pattern", "content"} or step["type"] != "Replace":
        return False
    pattern, content = step["pattern"], step["content"]
    if not isinstance(pattern, Mapping) or pattern.keys() != {"String"} or not isinstance(content, str):
        return False
    symbol, character = (pattern["String"], content) if part == "normalizer" else (content, pattern["String"])
    return isinstance(symbol, str) and 0 < len(symbol) <= 100 and symbol.split() == [symbol] and _is_character(character)


def _is_symbol(content: Any, step: Mapping[str, Any]) -> bool:
    return step.get("type") == "Replace" and _is_character(content) and "String" in step["pattern"]


def _is_character(text: Any) -> bool:
    return isinstance(text, str) and len(text) == 1 and FIRST <= ord(text) < FIRST + MAX_SYMBOLS
