"""Precision, recall and F1 of the entities that BIO tags mark, as conlleval and seqeval count them.

An entity is a longest run of words of one type. It starts at `B-TYPE`, and at an `I-TYPE` that does not follow a word of that
type. A predicted entity counts if its first word, its last word and its type are right. https://aclanthology.org/W03-0419/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from ..metrics import Score

Entity = tuple[str, int, int]


def marks_entities(tags: Iterable[str]) -> bool:
    """Whether all tags are `O`, `B-TYPE` or `I-TYPE`, and there are others than `O`."""
    found = set(tags) - {"O"}
    return bool(found) and all(tag.startswith(("B-", "I-")) for tag in found)


def entities_of(tags: Sequence[str]) -> set[Entity]:
    """The entities of a sentence: type, first word and the word after the last."""
    found, start, kind = set[Entity](), 0, ""
    for at, tag in enumerate([*tags, "O"]):
        prefix, _, own = tag.partition("-")
        if kind and (prefix != "I" or own != kind):
            found.add((kind, start, at))
            kind = ""
        if prefix != "O" and not kind:
            start, kind = at, own
    return found


def entity_counts(predicted: Tensor, labels: Tensor, ignored: int, names: Sequence[str]) -> tuple[int, int, int]:
    """The entities that are right, predicted and labelled, for classes (B, L) and labels (B, L)."""
    right = guessed = true = 0
    for one, other in zip(predicted.tolist(), labels.tolist(), strict=True):
        words = [(names[guess], names[label]) for guess, label in zip(one, other, strict=True) if label != ignored]
        made, wanted = (entities_of([each[side] for each in words]) for side in (0, 1))
        right, guessed, true = right + len(made & wanted), guessed + len(made), true + len(wanted)
    return right, guessed, true


def entity_score(right: float, guessed: float, true: float) -> Score:
    """F1 in per cent; 0 if there is nothing to count."""
    precision, recall = (100 * right / count if count else 0.0 for count in (guessed, true))
    value = 200 * right / (guessed + true) if guessed + true else 0.0
    return Score("f1", value, "F1 of entities, in per cent", f"precision {precision:.2f} %, recall {recall:.2f} %")
