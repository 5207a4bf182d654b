"""Every check that a report may name, read off the code that evaluates: the source of `check_texts.json`.

`python -m tfkit_conformance.write_check_texts` writes that file anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tfkit.commands import write_whole

from .check_texts import FILE
from .laws.check import LAWS
from .relations import RELATIONS
from .suite.fixed_calls import SUMMARY as FIXED_CALLS
from .suite.guided_calls import SUMMARY as GUIDED_CALLS
from .suite.layers import LAYERS
from .verification.properties import PROPERTIES

Row = dict[str, Any]

DEMANDS = {
    "exact": "bit for bit",
    "bound": "within the sum of the error bounds of the calls that are compared",
    "capability": "bit for bit, where the declaration promises it",
}


def check_text(
    name: str, evaluates: str, rule: str, summary: str, demand: str = "", void: tuple[str, ...] = ()
) -> dict[str, Any]:
    """One row of the file, as `tfkit explain` reads it."""
    return {"name": name, "evaluates": evaluates, "rule": rule, "summary": summary, "demand": demand, "void": void}


def declared_checks() -> Iterator[Row]:
    """The checks of `tfkit conformance`, slot by slot, then those of `tfkit verify`."""
    backend = "attention backends"
    yield check_text("declaration", backend, "A3", "the declaration is consistent")
    yield check_text("refusals", backend, "A3", "undeclared features are refused when `attend` is called directly")
    yield check_text("fixed calls", backend, "A2", FIXED_CALLS)
    yield check_text("guided calls", backend, "A2", GUIDED_CALLS)
    for layer in LAYERS:
        yield check_text(layer.name, backend, layer.rule, layer.summary)
    for relation in RELATIONS:
        void = tuple(feature.words for feature in relation.voided_by)
        yield check_text(relation.label, backend, relation.rule, relation.summary, DEMANDS[relation.demand], void)
    yield check_text("grade", backend, "A8", "accuracy, as a grade")
    for slot, laws in LAWS.items():
        for law in laws:
            number, location, words = law.rule.partition(": ")
            numbered = bool(location) and number[0] == "R" and number[1:].isdigit()
            rule, summary = (number, words) if numbered else ("", law.rule)
            yield check_text(law.name, f"parts of the slot {slot}", rule, summary)
    for model_property in PROPERTIES:
        yield check_text(model_property.name, "whole models", model_property.rule, model_property.summary)


def checks_json() -> str:
    """The content of `check_texts.json`, a check on a line."""
    rows = ",\n".join(f" {json.dumps(row, allow_nan=False)}" for row in declared_checks())
    return f"[\n{rows}\n]\n"


if __name__ == "__main__":
    write_whole(str(FILE), checks_json())
