"""The formula of a part: the kit's for a built-in entry, the entry's own for that of a plugin.

Formulas must not come from what they check, so that of a built-in part is here, whatever its entry says.
"""

from __future__ import annotations

from typing import Any

from tfkit.plugin import Component
from tfkit.plugin.model_parts import load

from . import activations, cells, norms, placements, positions, scores


class Unchecked(Exception):
    """A part has no formula."""


def formula(slot: str, entry: Any, place: str = "") -> Any:
    """The formula of an entry; of a position scheme, the one for a place where it acts.

    Raises:
        Unchecked: there is none; the message names slot and entry.
    """
    builtin = BUILT_IN[slot].get(entry.name)
    if builtin is not None:
        found = builtin[place] if place else builtin
    else:
        found = entry.formulas.get(place) if place else entry.formula
    if not found:
        raise Unchecked(f"{slot} {entry.name}")
    return _load(found) if isinstance(found, str) else found


def of(slot: str, part: Component, place: str = "") -> Any:
    """The formula of a part of a spec with its options already given."""
    function = formula(slot, part.entry, place)
    return lambda *arguments: function(part.options, *arguments)


def _load(name: str) -> Any:
    return load(name)


BUILT_IN: dict[str, dict[str, Any]] = {
    "activation": dict(activations.FORMULAS),
    "norm": dict(norms.FORMULAS),
    "cell": dict(cells.FORMULAS),
    "score": dict(scores.FORMULAS),
    "position": dict(positions.FORMULAS),
    "placement": dict(placements.FORMULAS),
}
"""The formulas of the built-in entries, by slot and name. `sublayers` and `nodes` add theirs."""
