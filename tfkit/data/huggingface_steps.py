"""The steps that a `tokenizer.json` of Hugging Face may have: normalisers, splits, special tokens around a text, and decoders.

Each class is one type of step with all its options; nothing else is allowed. Regular expressions are compared with a list,
because the library runs them without a limit of time. Every one of the list needs time linear in the text, with `FASTER`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from ..files import FileModel

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = frozenset(
    {
        # GPT-2: https://github.com/openai/gpt-2/blob/master/src/encoder.py
        rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
        # GPT-4 (cl100k_base) and Llama 3: https://github.com/openai/tiktoken/blob/main/tiktoken_ext/openai_public.py
        rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        # Qwen 2 and 3: transformers/models/qwen2/tokenization_qwen2.py
        rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        # GPT-4o (o200k_base): as GPT-4
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:{_CONTRACTIONS})?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
        rf"(?i:{_CONTRACTIONS})?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
        # Mistral (tekken): transformers/tokenization_utils_tokenizers.py
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
        # CLIP: https://github.com/openai/CLIP/blob/main/clip/simple_tokenizer.py
        rf"{_CONTRACTIONS}|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+",
        rf"<\|startoftext\|>|<\|endoftext\|>|{_CONTRACTIONS}|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+",
    }
)
"""The regular expressions that split a text."""
REPLACED = frozenset({r" {2,}", r"\s+", r"\n", r"[\n\r\t]", r" +▁", r"^▁+$"})
"""The regular expressions that are replaced: transformers/convert_slow_tokenizer.py."""
FASTER = {r" +▁": r"(?<! ) +▁"}
"""What the library runs in place of an expression whose time is quadratic. It has the same matches."""
MAX_CHARSMAP = 4 << 20
"""The most bytes of sentencepiece's table of characters; that of NMT-NFKC has 240 kB."""
MAX_REPLACEMENT = 256
"""The most bytes that this table writes for a match."""
Short = Annotated[str, Field(max_length=64)]
Behaviour = Literal["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


class Pattern(FileModel):
    String: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    Regex: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Pattern:
        if (self.String is None) == (self.Regex is None):
            raise ValueError("a pattern is a String or a Regex")
        return self


GROWTH = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 2, "BertNormalizer": 24}
"""How many times as many characters a normaliser may write: https://www.unicode.org/reports/tr15/#Table_UTF-8"""


class Plain(FileModel):
    """A step without options."""

    type: str

    @property
    def growth(self) -> int:
        """How many times as many characters it makes of a text at most."""
        return GROWTH.get(self.type, 1)


class BertNormalizer(Plain):
    clean_text: bool
    handle_chinese_chars: bool
    strip_accents: bool | None
    lowercase: bool


class StripSpaces(Plain):
    strip_left: bool
    strip_right: bool


class Prepend(Plain):
    prepend: Annotated[str, Field(min_length=1, max_length=8)]


class Replace(Plain):
    pattern: Pattern
    content: Short

    @field_validator("pattern")
    @classmethod
    def _known(cls, pattern: Pattern) -> Pattern:
        if pattern.Regex is not None and pattern.Regex not in REPLACED:
            raise ValueError("tfkit does not run this regular expression")
        return pattern

    @model_validator(mode="after")
    def _short(self) -> Replace:
        if self.pattern.Regex is not None and len(self.content) > 1:
            raise ValueError("a regular expression is replaced by one character at most")
        return self

    @property
    def growth(self) -> int:
        return max(1, -(-len(self.content) // len(self.pattern.String or " ")))


class Precompiled(Plain):
    precompiled_charsmap: Annotated[str, Field(max_length=MAX_CHARSMAP)]

    @field_validator("precompiled_charsmap")
    @classmethod
    def _table(cls, text: str) -> str:
        if not text:
            raise ValueError("it is empty")  # the library panics at it
        try:
            table = base64.b64decode(text, validate=True)
        except binascii.Error:
            table = b""
        if base64.b64encode(table).decode() != text:  # the library panics at padding that Python forgives
            raise ValueError("it is not base64")
        check_charsmap(table)
        return text

    @property
    def growth(self) -> int:
        return charsmap_growth(base64.b64decode(self.precompiled_charsmap))


class ByteLevel(Plain):
    add_prefix_space: bool = True
    trim_offsets: bool = True
    use_regex: bool = True


class Metaspace(Plain):
    replacement: Annotated[str, Field(min_length=1, max_length=1)]
    prepend_scheme: Literal["always", "first", "never"] | None = None
    split: bool = True
    add_prefix_space: bool = True
    str_rep: Annotated[str, Field(max_length=1)] = ""


class Digits(Plain):
    individual_digits: bool


class Punctuation(Plain):
    behavior: Behaviour = "Isolated"


class Split(Plain):
    pattern: Pattern
    behavior: Behaviour
    invert: bool

    @field_validator("pattern")
    @classmethod
    def _known(cls, pattern: Pattern) -> Pattern:
        if pattern.Regex is not None and pattern.Regex not in SPLITS:
            raise ValueError("tfkit does not run this regular expression")
        return pattern


class _Special(FileModel):
    id: Short
    type_id: Literal[0, 1]


class TemplateItem(FileModel):
    SpecialToken: _Special | None = None
    Sequence: _Special | None = None

    @model_validator(mode="after")
    def _one(self) -> TemplateItem:
        if (self.SpecialToken is None) == (self.Sequence is None):
            raise ValueError("an item is a SpecialToken or a Sequence")
        return self


class TemplateToken(FileModel):
    id: str
    ids: Annotated[list[int], Field(min_length=1, max_length=8)]
    tokens: Annotated[list[str], Field(min_length=1, max_length=8)]


class TemplateProcessing(Plain):
    single: Annotated[list[TemplateItem], Field(max_length=16)]
    pair: Annotated[list[TemplateItem], Field(max_length=16)]
    special_tokens: Annotated[dict[str, TemplateToken], Field(max_length=16)]


class BertProcessing(Plain):
    sep: Annotated[list[str | int], Field(min_length=2, max_length=2)]
    cls_: Annotated[list[str | int], Field(min_length=2, max_length=2, alias="cls")]

    @field_validator("sep", "cls_")
    @classmethod
    def _token(cls, token: list[Any]) -> list[Any]:
        if not isinstance(token[0], str) or type(token[1]) is not int:
            raise ValueError("it is a token and its id")
        return token


class RobertaProcessing(BertProcessing):
    trim_offsets: bool
    add_prefix_space: bool


class WordPieces(Plain):
    prefix: Short
    cleanup: bool


class StripCharacters(Plain):
    content: Annotated[str, Field(min_length=1, max_length=1)]
    start: Annotated[int, Field(ge=0, le=8)]
    stop: Literal[0]  # the library panics at a piece that is shorter


class BpeSuffix(Plain):
    suffix: Short


STEPS: Mapping[str, Mapping[str, type[Plain]]] = {
    "normalizer": {
        "BertNormalizer": BertNormalizer, "NFC": Plain, "NFD": Plain, "NFKC": Plain, "NFKD": Plain, "Nmt": Plain,
        "Lowercase": Plain, "StripAccents": Plain, "Strip": StripSpaces, "Prepend": Prepend, "Replace": Replace,
        "Precompiled": Precompiled,
    },
    "pre_tokenizer": {
        "BertPreTokenizer": Plain, "Whitespace": Plain, "WhitespaceSplit": Plain, "ByteLevel": ByteLevel,
        "Metaspace": Metaspace, "Digits": Digits, "Punctuation": Punctuation, "Split": Split,
    },
    "post_processor": {
        "TemplateProcessing": TemplateProcessing, "BertProcessing": BertProcessing, "RobertaProcessing": RobertaProcessing,
        "ByteLevel": ByteLevel,
    },
    "decoder": {
        "WordPiece": WordPieces, "ByteLevel": ByteLevel, "Metaspace": Metaspace, "ByteFallback": Plain, "Fuse": Plain,
        "Strip": StripCharacters, "Replace": Replace, "BPEDecoder": BpeSuffix,
    },
}  # fmt: skip
"""The allowed steps of each part by their type."""


def faster(part: Any) -> Any:
    """A checked part of a tokeniser with the expressions of `FASTER` replaced."""
    if isinstance(part, Mapping):
        return {key: FASTER.get(value, value) if key == "Regex" else faster(value) for key, value in part.items()}
    return [faster(child) for child in part] if isinstance(part, list) else part


def normaliser_growth(step: Mapping[str, Any]) -> int:
    """How many times as many characters a normaliser of a checked file makes of a text at most."""
    return STEPS["normalizer"][step["type"]].model_validate(step).growth


def check_charsmap(table: bytes) -> None:
    """Raises ValueError for a table of characters that is damaged, or that makes a text much longer.

    The table has the size of a trie (4 bytes), the trie, and replacements that end in NUL: sentencepiece/src/normalizer.cc. The
    library panics at a trie that leads out of it, or into the middle of a character: https://github.com/s-yata/darts-clone
    """
    if not table:
        return
    size = int.from_bytes(table[:4], "little")
    if len(table) < 4 or size % 4 or not 0 < size <= len(table) - 4:
        raise ValueError("the table of characters is damaged")
    replacements = table[4 + size :]
    try:
        replacements.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("the table of characters is damaged") from None
    if max(map(len, replacements.split(b"\0"))) > MAX_REPLACEMENT:
        raise ValueError(f"a character becomes more than {MAX_REPLACEMENT} bytes")
    units = np.frombuffer(table, "<u4", size // 4, 4)
    places = np.append(0, np.flatnonzero(units >> 31 == 0))  # units with this bit are values
    nodes = units[places]
    children = places ^ (nodes >> 10 << ((nodes & 0x200) >> 6))
    values = units[children[(nodes & 0x100 != 0) & (children < len(units))]] & 0x7FFFFFFF
    starts = np.frombuffer(replacements, np.uint8) & 0xC0 != 0x80
    if (children | 0xFF).max(initial=0) >= len(units) or values.max(initial=0) >= len(starts) or not starts[values].all():
        raise ValueError("the table of characters is damaged")


def charsmap_growth(table: bytes) -> int:
    """The most characters that a checked table of characters writes for one."""
    replacements = table[4 + int.from_bytes(table[:4], "little") :].decode("utf-8")
    return max(1, *map(len, replacements.split("\0")))
