"""From a file to a `ModelSpec`, or to all errors of the file.

    read -> extends -> --set -> structure -> defaults -> edges -> values

Each step collects errors. An error that makes later steps impossible is raised at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import count
from math import isfinite
from typing import Any

from ..catalogue import Catalogue, load_catalogue
from ..errors import Diagnostic, InputError, Location
from .edges import check_edges
from .extends import extended, read_extended
from .grammar import Grammar, grammar_of
from .inherit import Inheritance
from .located import INVALID, Diagnostics, Located, child_path, short
from .model import ModelSpec
from .overrides import apply
from .published import file_named
from .reader import FORBIDDEN, MAX_DEPTH, MAX_VALUES, read_text
from .scalars import LARGEST, LARGEST_REAL
from .stack import resolve_stack
from .structure import Structure
from .validate import validate
from .versions import migrate


def load_spec(
    path: str | os.PathLike[str],
    catalogue: Catalogue | None = None,
    overrides: Sequence[str] = (),
    *,
    named_by: str | None = None,
) -> ModelSpec:
    """Read a YAML or JSON spec.

    Args:
        path: the file, or the name of a shipped spec (`transformer-base`, see `tfkit specs`).
        catalogue: the entries that names refer to; those of the installed plugins by default.
        overrides: changes in the form of `--set`, such as `encoder.num_layers=12`.
        named_by: the file that names this one, if the user did not. Errors quote no text of files that lie elsewhere than
            the file that the user named.

    Returns:
        The resolved spec.

    Raises:
        SpecError: all errors at once, each located in the file or the override that caused it.
    """
    diagnostics, grammar = Diagnostics(), grammar_of(catalogue or load_catalogue())
    return _resolve(
        read_extended(file_named(os.fspath(path), "spec"), grammar.slots, diagnostics, named_by),
        overrides,
        grammar,
        diagnostics,
    )


def parse_spec(
    text: str | bytes | Mapping[str, Any],
    catalogue: Catalogue | None = None,
    overrides: Sequence[str] = (),
    file: str = "<text>",
) -> ModelSpec:
    """Read a spec from text or from a Python mapping.

    Args:
        text: YAML or JSON, or a mapping with the content of a file.
        catalogue: the entries that names refer to; those of the installed plugins by default.
        overrides: changes in the form of `--set`, such as `encoder.num_layers=12`.
        file: the name of the text in errors. `extends` is relative to it.

    Returns:
        The resolved spec.

    Raises:
        SpecError: all errors at once. Errors in a mapping have a path but no location in a file.
        InputError: `text` is neither text nor a mapping.
    """
    diagnostics, grammar = Diagnostics(), grammar_of(catalogue or load_catalogue())
    if isinstance(text, Mapping):
        root, file = read_mapping(text, diagnostics), "" if file == "<text>" else file
    elif isinstance(text, (str, bytes)):
        root = read_text(text, file, diagnostics)
    else:
        message = f"a spec is text or a mapping, not a {type(text).__name__}"
        raise InputError(Diagnostic("TFK073", message, "tfkit.load_spec reads a file"))
    root = extended(migrate(root, diagnostics), file, grammar.slots, diagnostics)
    return _resolve(root, overrides, grammar, diagnostics)


def _resolve(root: Located, overrides: Sequence[str], grammar: Grammar, diagnostics: Diagnostics) -> ModelSpec:
    written = Structure(grammar, diagnostics).spec(apply(root, overrides, grammar, diagnostics))
    nodes, defaults = written.get("nodes"), written.get("defaults")
    if nodes is None or nodes.value is INVALID or (defaults is not None and defaults.value is INVALID):
        raise diagnostics.error()
    inheritance = Inheritance(grammar, defaults, diagnostics)
    resolved = {name: tree for name, node in nodes.mapping.items() if (tree := _node(node, inheritance)) is not None}
    inheritance.unused()
    check_edges(nodes.mapping, resolved, written.get("outputs"), grammar, diagnostics)
    top = {key: child for key, child in written.mapping.items() if key not in ("defaults", "extends")}
    tree = written.holding({**top, "nodes": nodes.holding(resolved)})
    spec: ModelSpec | None = validate(tree, grammar, diagnostics)
    if spec is None or len(diagnostics):
        raise diagnostics.error()
    spec._tree = tree
    return spec


def _node(node: Located, inheritance: Inheritance) -> Located | None:
    """A node with its defaults, or None if its kind is unknown."""
    kind = inheritance.grammar.node_kinds.get(node.kind or "")
    if kind is None:
        inheritance.incomplete = True
        return None
    if inheritance.grammar.layers_field(kind):
        return resolve_stack(node, kind, inheritance)
    return node.holding(inheritance.plain_fields(node, kind))


def read_mapping(mapping: Mapping[str, Any], diagnostics: Diagnostics) -> Located:
    """The located form of a Python mapping. Adds errors about single values to `diagnostics`. Raises SpecError if the mapping
    is too large or too deep, as one that contains itself is."""
    return _Reader(diagnostics).read(mapping, "", 0)


class _Reader:
    def __init__(self, diagnostics: Diagnostics) -> None:
        self.diagnostics = diagnostics
        self.numbers = count(1)

    def read(self, value: Any, path: str, depth: int) -> Located:
        location = Location("", next(self.numbers))  # without a file: it distinguishes values and is never shown
        if location.line > MAX_VALUES:
            self.diagnostics.fatal("TFK001", location, "", f"the spec holds more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            self.diagnostics.fatal("TFK001", location, path, f"values are nested deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            children: dict[str, Located] = {}
            for key, child in value.items():
                if isinstance(key, str):
                    children[str(key)] = self.read(child, child_path(path, short(key)), depth + 1)
                else:
                    self.diagnostics.add("TFK006", location, path, f"a key is a plain name, not {short(repr(key))}")
            return Located(children, location, path, key=location)
        if isinstance(value, (list, tuple)):
            items = [self.read(child, child_path(path, number), depth + 1) for number, child in enumerate(value)]
            return Located(items, location, path, key=location)
        return self.scalar(value, location, path)

    def scalar(self, value: Any, location: Location, path: str) -> Located:
        text = {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
        if isinstance(value, str) and (bad := FORBIDDEN.search(value)):
            self.diagnostics.add("TFK003", location, path, f"the character U+{ord(bad[0]):04X} is not allowed in a spec")
        elif isinstance(value, (int, float)) and not abs(value) <= (LARGEST if isinstance(value, int) else LARGEST_REAL):
            why = "too large" if isfinite(value) else "not finite"
            self.diagnostics.add("TFK008", location, path, f"the number is {why}, `{short(text)}` is written")
        elif value is not None and not isinstance(value, (str, int, float)):
            message = f"text, a number, true, false, null, a list or a mapping is expected, a {type(value).__name__} is given"
            self.diagnostics.add("TFK020", location, path, message)
        else:
            return Located(value, location, path, text, location)
        return Located(INVALID, location, path, text, location)
