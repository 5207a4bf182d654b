"""The language of recipes: its parts, and which keys are allowed where."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType

from ..catalogue import Catalogue, Registration
from ..slots.options import Entry
from ..spec.grammar import Grammar
from .data_kinds import DATA
from .optimisers import OPTIMISERS
from .recipe import Recipe
from .schedules import SCHEDULES
from .teacher_forcing import TEACHER_FORCING
from .tokenisers import TOKENISERS

PARTS: dict[str, tuple[Entry, ...]] = {
    "data": DATA,
    "tokeniser": TOKENISERS,
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "teacher_forcing": TEACHER_FORCING,
}


@cache
def recipe_grammar() -> Grammar:
    """The grammar of recipes: the parts above, and no nodes."""
    slots = {**{slot: PARTS[slot] for slot in PARTS}, "node": (), "sublayer": ()}
    registered = {
        slot: MappingProxyType({entry.name: Registration(entry, "builtin", "tfkit") for entry in entries})
        for slot, entries in slots.items()
    }
    return Grammar(Catalogue(MappingProxyType(registered)), Recipe, (*Recipe.model_fields, "extends"))
