"""The special tokens around a text, or around a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Ids = tuple[int, ...]
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
PAD, START, END, UNKNOWN = range(4)
"""The ids of these special tokens in a vocabulary that tfkit trains."""
MASK, MASK_ID = "<mask>", 4
"""The token after them, of masked data."""


@dataclass(frozen=True)
class Frame:
    """Special tokens around a text.

    Attributes:
        before: Their ids before the text.
        after: Their ids after it.
    """

    before: Ids = ()
    after: Ids = ()

    def __len__(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.after)

    def __call__(self, ids: Sequence[int]) -> list[int]:
        return [*self.before, *ids, *self.after]


@dataclass(frozen=True)
class PairFrame:
    """Special tokens around a pair of texts.

    Attributes:
        before: Their ids before the first text.
        between: Their ids between the texts.
        after: Their ids after the second text.
        segments: The segments of `before`, the first text, each of `between`, the second text and `after`.
    """

    before: Ids
    between: Ids
    after: Ids
    segments: tuple[int, ...]

    def __len__(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def __call__(self, first: Sequence[int], second: Sequence[int]) -> list[int]:
        return [*self.before, *first, *self.between, *second, *self.after]

    def segments_of(self, first: int, second: int) -> list[int]:
        """The segment of every token of a pair of texts with these lengths."""
        counts = [*[1] * len(self.before), first, *[1] * len(self.between), second, *[1] * len(self.after)]
        return [segment for segment, count in zip(self.segments, counts, strict=True) for _ in range(count)]


def frames_of(processor: Mapping[str, Any] | None) -> tuple[Frame, PairFrame]:
    """The frames of a checked post-processor of the `tokenizers` library. Raises ValueError if it does not keep the texts in
    order."""
    steps = [processor] if processor else []
    if processor and processor["type"] == "Sequence":
        steps = processor["processors"]
    framing = [step for step in steps if step["type"] != "ByteLevel"]
    if len(framing) > 1:
        raise ValueError("more than one step adds special tokens")
    if not framing:
        return Frame(), PairFrame((), (), (), (0, 0))
    step = framing[0]
    if step["type"] == "TemplateProcessing":
        (single, _), (pair, segments) = (_template(step[name], step["special_tokens"]) for name in ("single", "pair"))
        if len(single) != 2 or len(pair) != 3:
            raise ValueError("a template has each text once, and the first one first")
        return Frame(*single), PairFrame(pair[0], pair[1], pair[2], segments)
    start, end = (step["cls"][1],), (step["sep"][1],)
    if step["type"] == "BertProcessing":
        return Frame(start, end), PairFrame(start, end, end, (0, 0, 0, 1, 1))
    return Frame(start, end), PairFrame(start, end + end, end, (0,) * 6)


def _template(items: Sequence[Mapping[str, Any]], tokens: Mapping[str, Any]) -> tuple[list[Ids], tuple[int, ...]]:
    """The ids before, between and after the texts of a template, and its segments."""
    parts: list[list[int]] = [[]]
    segments: list[int] = []
    for item in items:
        if (token := item.get("SpecialToken")) is not None:
            if token["id"] not in tokens:
                raise ValueError(f"the template has no ids for `{token['id']}`")
            ids = tokens[token["id"]]["ids"]
            parts[-1] += ids
            segments += [token["type_id"]] * len(ids)
        else:
            if item["Sequence"]["id"] != "AB"[len(parts) - 1 : len(parts)]:
                raise ValueError("a template has each text once, and the first one first")
            parts.append([])
            segments.append(item["Sequence"]["type_id"])
    return [tuple(part) for part in parts], tuple(segments)
