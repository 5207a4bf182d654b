"""What to say about a name that nobody knows here: what the user probably meant, and where it belongs."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from .grammar import Grammar
from .marked import Faults, Marked, short
from .peers import PEERS

CLOSE = 0.7


def nearest(name: str, known: Collection[str], cutoff: float = 0.6) -> str | None:
    """The known name that looks most like this one."""
    near = difflib.get_close_matches(name, sorted(known), 1, cutoff) if len(name) <= 60 else []
    return near[0] if near else None


def did_you_mean(name: str, known: Collection[str], several: str = "known") -> str:
    """The nearest name as a question, or the known names where they are few."""
    near = nearest(name, known)
    if near:
        return f"did you mean `{near}`?"
    return f"{several}: {', '.join(sorted(known))}" if 0 < len(known) <= 30 else ""


def unknown_key(name: str, value: Marked, place: Marked, allowed: Collection[str], grammar: Grammar, faults: Faults) -> None:
    """Adds the fault of a key that may not stand here: of another toolkit, in the wrong place, misspelt, or unheard of."""
    mark = value.key or value.mark
    ours, near = PEERS.get(name), nearest(name, allowed, CLOSE)
    if ours in allowed:
        faults.add("TFK010", mark, place.path, f"unknown key `{short(name)}`", f"the name here is `{ours}`")
    elif name in grammar.places:
        fix = _belongs(name, grammar)
        faults.add("TFK018", mark, place.path, f"`{short(name)}` does not belong here", f"it belongs under {fix}")
    elif near:
        faults.add("TFK010", mark, place.path, f"unknown key `{short(name)}`", f"did you mean `{near}`?")
    elif ours in grammar.places:
        fix = f"the name here is `{ours}`, under {_belongs(str(ours), grammar)}"
        faults.add("TFK010", mark, place.path, f"unknown key `{short(name)}`", fix)
    else:
        other = nearest(name, grammar.places, 0.85)
        known = f"known here: {', '.join(sorted(allowed))}" if 0 < len(allowed) <= 30 else ""
        fix = f"did you mean `{other}`, under {_belongs(other, grammar)}?" if other else known
        faults.add("TFK010", mark, place.path, f"unknown key `{short(name)}`", fix)


def _belongs(name: str, grammar: Grammar) -> str:
    places = grammar.places[name]
    return " or ".join(places[:3]) + (" or others" if len(places) > 3 else "")


def unknown_name(slot: str, name: str, grammar: Grammar) -> tuple[str, str]:
    """Message and fix for a name that no entry of the slot has."""
    fix = grammar.catalogue.why_missing(slot, name) if len(name) <= 60 else ""
    return f"unknown {SLOT_WORDS.get(slot, slot)} `{short(name)}`", fix


SLOT_WORDS = {"node": "node kind", "sublayer": "sub-layer kind", "score": "score function", "backend": "attention backend"}
