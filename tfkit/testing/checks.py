"""Every check that a report may name, in one list: what it is about, what it demands, and what voids it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .laws.run import LAWS
from .relations import RELATIONS
from .suite.layers import LAYERS
from .verification.properties import PROPERTIES

DEMANDS = {
    "exact": "bit for bit",
    "bound": "within the sum of the error bounds of the calls that are compared",
    "capability": "bit for bit, where the declaration promises it",
}


@dataclass(frozen=True)
class Check:
    """`name` as reports have it; `judges` what it is asked of; `rule` the rule of the contract, or the number of the relation,
    that it shows; `void` the features that leave it nothing to say."""

    name: str
    judges: str
    rule: str
    summary: str
    demand: str = ""
    void: tuple[str, ...] = ()


def all_checks() -> Iterator[Check]:
    """The checks of `tfkit conformance`, slot by slot, then those of `tfkit verify`."""
    backend = "attention backends"
    yield Check("declaration", backend, "A3", "the declaration makes sense")
    yield Check("refusals", backend, "A3", "what is not declared is refused when `attend` is called directly")
    for layer in LAYERS:
        yield Check(layer.name, backend, layer.rule, layer.summary)
    for relation in RELATIONS:
        name = f"{relation.number} {relation.name}"
        void = tuple(feature.words for feature in relation.voided_by)
        yield Check(name, backend, relation.rule, relation.summary, DEMANDS[relation.demand], void)
    yield Check("grade", backend, "A8", "accuracy beyond the bound")
    for slot, laws in LAWS.items():
        for law in laws:
            number, mark, words = law.rule.partition(": ")
            numbered = bool(mark) and number[0] == "R" and number[1:].isdigit()
            yield Check(law.name, f"parts of the slot {slot}", number if numbered else "", words if numbered else law.rule)
    for found in PROPERTIES:
        yield Check(found.name, "whole models", found.rule, found.summary)


def checks_named(words: str) -> list[Check]:
    """The checks with this name, number (`R19`) or rule (`A5`), in any case."""
    wanted = words.casefold()
    return [check for check in all_checks() if wanted in _calls(check)]


def _calls(check: Check) -> set[str]:
    first, _, rest = check.name.partition(" ")
    numbered = {first, rest} if first[:1] in "AR" and first[1:].isdigit() else set()
    return {word.casefold() for word in {check.name, check.rule, *numbered} if word}
