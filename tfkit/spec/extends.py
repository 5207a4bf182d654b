"""`extends: base.yaml`: merges a spec over the one that it extends, before any other step."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping

from ..errors.elsewhere import is_beside
from .grammar import TOP
from .located import Diagnostics, Located, short
from .merge import over
from .published import is_published, nearest_published, published_file
from .reader import read_file
from .versions import migrate

OWN = frozenset({"tfkit", "name", "reference", "description", "expect"})
"""Keys that describe one spec and are not inherited."""
LONGEST_CHAIN = 16


def read_extended(path: str, slots: Mapping[str, str], diagnostics: Diagnostics, named_by: str | None = None) -> Located:
    """The spec in a file, merged over those that it extends. Raises SpecError if one of them cannot be read, without the text
    of a file that lies elsewhere than `named_by`, the file that the user named: this one by default."""
    named_by = path if named_by is None else named_by
    _check_place(path, named_by, diagnostics)
    return extended(migrate(read_file(path, diagnostics), diagnostics), path, slots, diagnostics, named_by)


def extended(
    root: Located,
    path: str,
    slots: Mapping[str, str],
    diagnostics: Diagnostics,
    named_by: str | None = None,
    chain: tuple[str, ...] = (),
) -> Located:
    """A spec read from `path`, merged over those that it extends. `named_by` as in `read_extended`."""
    named_by = path if named_by is None else named_by
    link = root.get("extends")
    if link is None:
        return root
    if not isinstance(link.value, str) or not link.value:
        diagnostics.fatal("TFK020", link.location, "extends", f"`extends` names one file, {link.shown}")
    chain = (*chain, os.path.realpath(path))
    base_path = _base_path(path, link.value, root)
    _check_place(base_path, named_by, diagnostics)
    base = _base(base_path, link, chain, diagnostics)
    base = extended(migrate(base, diagnostics), base_path, slots, diagnostics, named_by, chain)
    inherited = base.holding({key: child for key, child in base.mapping.items() if key not in OWN})
    written = root.holding({key: child for key, child in root.mapping.items() if key != "extends"})
    return over(inherited, _without_ineffective_nulls(inherited, written, base_path, diagnostics), slots, removing=True)


def _base_path(path: str, name: str, root: Located) -> str:
    """The file that `extends` names: relative to the one that it is written in, or a shipped one. A directory is neither."""
    beside = os.path.join(os.path.dirname(path), name)
    kinds = ("spec", "recipe") if root.mapping.keys() <= {*TOP} else ("recipe", "spec")
    shipped = None if os.path.lexists(beside) and not os.path.isdir(beside) else published_file(name, *kinds)
    return shipped or beside


def _check_place(path: str, named_by: str, diagnostics: Diagnostics) -> None:
    """Forbids errors to quote a file that lies elsewhere than the one that the user named."""
    if not is_beside(path, os.path.dirname(named_by)) and not is_published(path):
        diagnostics.elsewhere[path] = named_by


def _base(path: str, link: Located, chain: tuple[str, ...], diagnostics: Diagnostics) -> Located:
    if not os.path.isfile(path):
        kind = "is not a regular file" if os.path.exists(path) else "does not exist"
        fix = nearest_published(link.value, "spec", "recipe")
        if path not in diagnostics.elsewhere:
            fix = _neighbour(path, chain) or fix
        diagnostics.fatal("TFK016", link.location, "extends", f"`{short(link.text)}` {kind}", fix)
    if os.path.realpath(path) in chain:
        names = " -> ".join(map(os.path.basename, (*chain, path)))
        diagnostics.fatal("TFK016", link.location, "extends", f"a spec extends itself: {names}")
    if len(chain) > LONGEST_CHAIN:
        diagnostics.fatal("TFK016", link.location, "extends", f"more than {LONGEST_CHAIN} specs extend each other")
    return read_file(path, diagnostics)


def _neighbour(path: str, chain: tuple[str, ...]) -> str:
    """A suggestion: the file with the most similar name that is not in the chain already."""
    folder = os.path.dirname(path) or "."
    try:
        names = [name for name in sorted(os.listdir(folder)) if os.path.realpath(os.path.join(folder, name)) not in chain]
    except (OSError, ValueError):  # the folder does not exist or cannot be read
        return ""
    files = {os.path.splitext(name)[0]: name for name in names}
    near = difflib.get_close_matches(os.path.splitext(os.path.basename(path))[0][:80], files, 1)
    return f"did you mean `{files[near[0]]}`?" if near else ""


def _without_ineffective_nulls(base: Located, written: Located, path: str, diagnostics: Diagnostics) -> Located:
    """`written` without nulls that remove nothing. A null for a key of `OWN` is ignored, because these keys are not inherited.
    A null for a node or a default that the base does not have is an error: its name is misspelt."""
    parts = {key: child for key, child in written.mapping.items() if key not in OWN or child.value is not None}
    for name in ("nodes", "defaults", "outputs"):
        if name in parts and parts[name].value is None and name not in base.mapping:
            _nothing_to_remove(name, parts.pop(name), base.mapping, path, diagnostics)
    for part in ("nodes", "defaults"):
        theirs, ours = base.get(part), written.get(part)
        known = theirs.mapping if theirs else {}
        for name, child in (ours.mapping if ours else {}).items():
            if child.value is None and name not in known:
                _nothing_to_remove(name, child, known, path, diagnostics)
                parts[part] = parts[part].holding({key: kept for key, kept in parts[part].mapping.items() if key != name})
    return written.holding(parts)


def _nothing_to_remove(name: str, child: Located, known: Collection[str], path: str, diagnostics: Diagnostics) -> None:
    near = [] if path in diagnostics.elsewhere else difflib.get_close_matches(name[:80], known, 1)
    fix = f"did you mean `{near[0]}`?" if near else "leave it out"
    diagnostics.add(
        "TFK016",
        child.key or child.location,
        child.path,
        f"there is no `{short(name)}` in {os.path.basename(path)} to remove",
        fix,
    )
