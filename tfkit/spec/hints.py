"""Suggestions for unknown names: the name that was probably meant, and its place in a spec."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from ..slots.aliases import spelling
from .field_aliases import PEERS
from .grammar import Grammar
from .located import Diagnostics, Located, short

CLOSE = 0.65
_GLUED = re.compile(r"[A-Za-z_][\w.-]*:[^\s:/\\]")


def nearest(name: str, known: Collection[str], cutoff: float = 0.6) -> str | None:
    """The known name with the same letters (`numHeads`), or the most similar one."""
    same = [candidate for candidate in sorted(known) if spelling(candidate) == spelling(name)] if len(name) <= 60 else []
    if same:
        return same[0]
    near = difflib.get_close_matches(name, sorted(known), 1, cutoff) if len(name) <= 60 else []
    return near[0] if near else None


def glued(text: str) -> str:
    """The fix for a key and a value without a space between them (`dropout:0.1`), which YAML reads as one name."""
    return "write a space after the colon" if _GLUED.match(text) else ""


def did_you_mean(name: str, known: Collection[str], several: str = "known") -> str:
    """The nearest name as a question, or the known names if they are few."""
    near = nearest(name, known)
    if near:
        return f"did you mean `{near}`?"
    return f"{several}: {', '.join(sorted(known))}" if 0 < len(known) <= 30 else ""


def unknown_key(
    name: str,
    value: Located,
    path: str,
    allowed: Collection[str],
    grammar: Grammar,
    diagnostics: Diagnostics,
    near_keys: bool = False,
) -> None:
    """Adds the error about an unknown key: a name of another toolkit, a key in the wrong place, a misspelt or an unknown one.

    `path` is that of the mapping. With `near_keys` the mapping holds options of a sub-layer, and suggestions start with their
    keys.
    """
    ours, near = PEERS.get(spelling(name[:60])), nearest(name, allowed, CLOSE)
    code, message = "TFK010", f"unknown key `{short(name)}`"
    if ours in allowed:
        fix, meant = f"the name here is `{ours}`", ours
    elif name in grammar.places:
        code, message = "TFK018", f"`{short(name)}` does not belong here"
        twin = nearest(name, allowed, 0.85)
        fix, meant = (
            f"it belongs under {_belongs(name, grammar, near_keys)}" + (f", or did you mean `{twin}`?" if twin else ""),
            name,
        )
    elif near:
        fix, meant = f"did you mean `{near}`?", near
    elif ours in grammar.places:
        fix, meant = f"the name here is `{ours}`, under {_belongs(str(ours), grammar, near_keys)}", ours
    else:
        meant = nearest(name, grammar.places, 0.85)
        known = f"known here: {', '.join(sorted(allowed))}" if 0 < len(allowed) <= 30 else ""
        fix = f"did you mean `{meant}`, under {_belongs(meant, grammar, near_keys)}?" if meant else known
    if meant:
        diagnostics.meant.add(meant)
    diagnostics.add(code, value.key or value.location, path, message, fix)


def _belongs(name: str, grammar: Grammar, near_keys: bool) -> str:
    keys = {f"`{key}`" for key in grammar.option_keys}
    places = [place for place in grammar.places[name] if place in keys] if near_keys else []
    places = places or list(grammar.places[name])
    return " or ".join(places[:3]) + (" or others" if len(places) > 3 else "")


def unknown_name(slot: str, name: str, grammar: Grammar) -> tuple[str, str]:
    """Message and fix for an unknown name in a slot."""
    fix = glued(name) or (grammar.catalogue.why_missing(slot, name) if len(name) <= 60 else "")
    return f"unknown {SLOT_WORDS.get(slot, slot)} `{short(name)}`", fix


def which_kind(slot: str, grammar: Grammar) -> str:
    """The fix for a part without `kind`."""
    return f"write which {SLOT_WORDS.get(slot, slot)}: {', '.join(grammar.names(slot))}"


SLOT_WORDS = {
    "node": "node kind",
    "cell": "recurrent cell",
    "sublayer": "sub-layer kind",
    "score": "score function",
    "backend": "attention backend",
}
