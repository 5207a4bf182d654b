"""From a file to a `ModelSpec`, or to all errors of the file.

    read -> extends -> --set -> structure -> defaults -> edges -> values

Each step collects errors. An error that makes later steps impossible is raised at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..catalogue import Catalogue, load_catalogue
from ..errors import Diagnostic, InputError
from .edges import check_edges
from .extends import extended, read_extended
from .grammar import Grammar, grammar_of
from .inherit import Inheritance
from .located import INVALID, Diagnostics, Located
from .mapping import read_mapping
from .model import ModelSpec
from .overrides import apply
from .published import file_named
from .reader import read_text
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
