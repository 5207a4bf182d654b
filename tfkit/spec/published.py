"""The specs and recipes that tfkit ships, by name. `transformer-base` is one wherever the file of a spec may be named, unless
there is a file of that name. A path with a slash, or with the suffix of YAML or JSON, is never a name."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PLACE = Path(__file__).parents[1] / "published"
FOLDERS = {"spec": PLACE, "recipe": PLACE / "recipes"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_SUFFIXES = (".yaml", ".yml", ".json")
_LINKS = re.compile(r"^(model|extends): (?:\.\./)?([\w.-]+)\.yaml$", re.MULTILINE)
_EDITOR = re.compile(r"\A# yaml-language-server: .*\n")


@cache
def published(kind: str) -> Mapping[str, str]:
    """The shipped specs or recipes: files by name, sorted. `kind` is "spec" or "recipe"."""
    return {path.stem: str(path) for path in sorted(FOLDERS[kind].glob("*.yaml"), key=lambda path: path.stem)}


def is_name(text: str) -> bool:
    """Whether a text can be the name of a shipped file, and is not that of another file."""
    return _NAME.fullmatch(text) is not None and not text.lower().endswith(_SUFFIXES)


def published_file(text: str, *kinds: str) -> str | None:
    """The shipped file that a text names, the first of these kinds; None if there is none."""
    return next((published(kind)[text] for kind in kinds if is_name(text) and text in published(kind)), None)


def file_named(text: str, *kinds: str) -> str:
    """The file that a user names: one in the working directory, or a shipped one. A directory is neither."""
    shipped = None if os.path.lexists(text) and not os.path.isdir(text) else published_file(text, *kinds)
    return shipped or text


def is_published(path: str) -> bool:
    """Whether a file is a shipped one, whose text errors may quote."""
    return os.path.dirname(path) in {str(folder) for folder in FOLDERS.values()}


def nearest_published(text: str, *kinds: str) -> str:
    """The fix for a file that does not exist: the shipped one that may be meant. Empty if the text can be no name."""
    stem, suffix = os.path.splitext(os.path.basename(text))
    if suffix.lower() in _SUFFIXES and published_file(stem, *kinds):
        return f"the one that comes with tfkit has the name `{stem}`"
    if not is_name(text):
        return ""
    for kind in kinds:
        if text in published(kind):
            return f"`{text}` is a {kind}; `tfkit specs` lists the names of specs and recipes"
    known = [name for kind in kinds for name in published(kind)]
    near = difflib.get_close_matches(text, known, 1)
    return (f"did you mean `{near[0]}`? " if near else "") + "`tfkit specs` lists the names of specs and recipes"


def copies(kind: str, name: str) -> dict[str, bytes]:
    """A shipped file to edit under its file name, and by relative path the data that it names beside it."""
    place = Path(published(kind)[name])
    text = _LINKS.sub(r"\1: \2", _EDITOR.sub("", place.read_text(encoding="utf-8")))
    files = sorted(place.parent.glob("*/*")) if kind == "recipe" else ()
    data = [file for file in files if f"{file.parent.name}/{file.name}" in text]
    return {place.name: text.encode(), **{f"{file.parent.name}/{file.name}": file.read_bytes() for file in data}}
