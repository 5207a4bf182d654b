"""Every check that a report may name, read off the code that judges: the source of `check_texts.json`.

`python -m tfkit_conformance.write_check_texts` writes that file anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from tfkit.cli.check_texts import Check
from tfkit.files import write_whole

from .check_texts import FILE
from .laws.check import LAWS
from .relations import RELATIONS
from .suite.layers import LAYERS
from .verification.properties import PROPERTIES

DEMANDS = {
    "exact": "bit for bit",
    "bound": "within the sum of the error bounds of the calls that are compared",
    "capability": "bit for bit, where the declaration promises it",
}


def declared_checks() -> Iterator[Check]:
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
            number, location, words = law.rule.partition(": ")
            numbered = bool(location) and number[0] == "R" and number[1:].isdigit()
            yield Check(law.name, f"parts of the slot {slot}", number if numbered else "", words if numbered else law.rule)
    for found in PROPERTIES:
        yield Check(found.name, "whole models", found.rule, found.summary)


def checks_json() -> str:
    """The content of `check_texts.json`, a check on a line."""
    rows = ",\n".join(f" {json.dumps(asdict(check))}" for check in declared_checks())
    return f"[\n{rows}\n]\n"


if __name__ == "__main__":
    write_whole(FILE, checks_json())
