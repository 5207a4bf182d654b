"""From a file to a `ModelSpec`, or to every fault that the file has.

    read -> extends -> --set -> structure -> defaults -> values -> edges
Each step only adds faults; the ones that make all later steps pointless raise at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..catalogue import Catalogue, load_catalogue
from ..errors import Diagnostic, InputError
from .edges import check_edges
from .extends import extended, read_extended
from .grammar import Grammar
from .inherit import Inheritance
from .located import INVALID, Diagnostics, Located
from .mapping import read_mapping
from .model import ModelSpec
from .overrides import apply
from .reader import read_text
from .stack import resolve_stack
from .structure import Structure
from .validate import validate
from .versions import migrate


def load_spec(path: str | os.PathLike[str], catalogue: Catalogue | None = None, overrides: Sequence[str] = ()) -> ModelSpec:
    """Reads a YAML or JSON spec, with `--set` overrides such as `encoder.num_layers=12`; the catalogue is that of everything
    installed unless given.

    Raises SpecError with all faults at once, each located in the file, or in the override, that caused it.
    """
    diagnostics, grammar = Diagnostics(), Grammar(catalogue or load_catalogue())
    return _resolve(read_extended(os.fspath(path), grammar.slots, diagnostics), overrides, grammar, diagnostics)


def parse_spec(
    text: str | bytes | Mapping[str, Any],
    catalogue: Catalogue | None = None,
    overrides: Sequence[str] = (),
    file: str = "<text>",
) -> ModelSpec:
    """Like `load_spec`, for text at hand, or for a Python mapping of what a file would hold. `file` is what errors in a text
    call it, and what `extends` is relative to; faults of a mapping say its path alone."""
    diagnostics, grammar = Diagnostics(), Grammar(catalogue or load_catalogue())
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
    heirs = Inheritance(grammar, defaults, diagnostics)
    resolved = {name: tree for name, node in nodes.mapping.items() if (tree := _node(node, heirs)) is not None}
    heirs.unused()
    check_edges(nodes.mapping, resolved, written.get("outputs"), grammar, diagnostics)
    top = {key: child for key, child in written.mapping.items() if key not in ("defaults", "extends")}
    tree = written.holding({**top, "nodes": nodes.holding(resolved)})
    spec: ModelSpec | None = validate(tree, grammar, diagnostics)
    if spec is None or len(diagnostics):
        raise diagnostics.error()
    spec._tree = tree
    return spec


def _node(node: Located, heirs: Inheritance) -> Located | None:
    """A node with its defaults, or None where nobody knows what it is."""
    kind = heirs.grammar.node_kinds.get(node.kind or "")
    if kind is None:
        heirs.doubtful = True
        return None
    if heirs.grammar.layers_field(kind):
        return resolve_stack(node, kind, heirs)
    return node.holding(heirs.plain_fields(node, kind))
