"""What a label may be: classes and tags are printed as lines of data, and looked up by name."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors.control_characters import BLANK, CONTROL_OR_LINE_END, as_seen, shown

MAX_LABEL = 1_000
"""The most characters of a label."""
SHOWN = 60
"""Characters of a label in a message."""


def label_fault(label: str, word: bool = False) -> str:
    """Why text cannot be a label, empty if it can; `word`: the tag of a word. Tags are printed with spaces between them."""
    if match := CONTROL_OR_LINE_END.search(label):
        return f"the label {_shown(label)} holds the control character U+{ord(match[0]):04X}"
    if len(label) > MAX_LABEL:
        return f"the label {_shown(label)} has {len(label):,} characters, and at most {MAX_LABEL:,} are read"
    if word and len(label.replace(BLANK, " ").split()) > 1:
        return f"the tag {_shown(label)} holds white space"
    return "" if as_seen(label) else "a label is empty"


def check_labels(labels: Sequence[str], words: bool = False) -> None:
    """Raises ValueError if one of all labels cannot be a label, or two look the same; `words` as in `label_fault`."""
    places: dict[str, int] = {}
    for number, label in enumerate(labels):
        if fault := label_fault(label, words):
            raise ValueError(fault)
        if (seen := as_seen(label)) in places:
            raise ValueError(f"classes {places[seen]} and {number} have the same label {_shown(label)}")
        places[seen] = number


def _shown(label: str) -> str:
    text = label if len(label) <= SHOWN else f"{label[: SHOWN - 3]}..."
    return f"`{shown(text)}`"
