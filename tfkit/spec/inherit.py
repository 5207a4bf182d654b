"""Inheritance from `defaults`: it completes the values of every node.

A default never adds an optional part. `embedding_norm`, `output_norm`, `final_norm` and `query_key_norm` take the options of
`defaults.norm` only if they are written and have the same kind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import ValidationError

from ..slots.node import NodeKind
from ..slots.options import Component
from .grammar import PATTERN, Grammar
from .located import INVALID, Diagnostics, Located, plain, short
from .merge import as_part, over


class Inheritance:
    """Merges nodes over the defaults and records which defaults were used."""

    def __init__(self, grammar: Grammar, defaults: Located | None, diagnostics: Diagnostics) -> None:
        self.grammar, self.diagnostics = grammar, diagnostics
        self.defaults = defaults
        self.used: set[int] = set()
        self.incomplete = False
        self.sublayers = 0
        """The number of sub-layers of all layers of the spec so far, repetitions not counted."""

    def default(self, name: str) -> Located | None:
        """A default. It is recorded as used."""
        child = self.defaults.get(name) if self.defaults else None
        if child is not None:
            self.used.add(id(child))
        return child

    def fold(self, scopes: Sequence[Located], name: str) -> Located | None:
        """The value of a name, merged over all scopes; the last scope is the nearest."""
        result: Located | None = None
        for scope in scopes:
            child = scope.get(name)
            if child is not None:
                self.used.add(id(child))
                result = over(result, child, self.grammar.slots, name)
        return result

    def plain_fields(self, node: Located, kind: NodeKind) -> dict[str, Located]:
        """The keys of the node, merged over the plain defaults that its kind inherits."""
        fields = dict(node.mapping)
        owner = self.owner(node, kind)
        if owner is not None and "vocab_size" in fields:
            written, fix = fields.pop("vocab_size"), "remove it"
            message = f"`vocab_size` is that of `{short(owner.text)}`, whose table is shared"
            self.diagnostics.add("TFK031", written.key or written.location, written.path, message, fix)
        inherited = self.grammar.inherits(kind)
        if owner is not None:
            inherited -= {"vocab_size"}
        if not self.position_reaches(embeddings=True):
            inherited -= {"position"}
        for name in sorted(inherited):
            default = self.default(name)
            if default is not None:
                fields[name] = over(default, fields[name], self.grammar.slots, name) if name in fields else default
        missing = "vocab_size" not in fields or fields["vocab_size"].value is None
        if owner is None and missing and "vocab_size" not in self.diagnostics.meant and self.may_share(kind):
            fix = "write it here or in `defaults`, or `share` the table of another node"
            self.diagnostics.add("TFK030", node.location, node.path, "`vocab_size` is missing", fix)
        return self.with_norm_options(fields)

    def may_share(self, kind: NodeKind) -> bool:
        roles = {role for _, role in self.grammar.references(kind)}
        return "owner" in roles and "vocab_size" in kind.options.model_fields

    def owner(self, node: Located, kind: NodeKind) -> Located | None:
        """The reference to the node whose weights this one shares."""
        names = [name for name, role in self.grammar.references(kind) if role == "owner"]
        return next((child for name in names if (child := node.get(name)) is not None and child.value is not None), None)

    def with_norm_options(self, fields: dict[str, Located]) -> dict[str, Located]:
        """The fields, in which optional norms of the kind of `defaults.norm` take its options."""
        base = self.defaults.get("norm") if self.defaults else None
        if base is None:
            return fields
        for name, value in fields.items():
            if name != "norm" and self.grammar.slots.get(name) == "norm":
                part = as_part(value)
                if part.kind is not None and part.kind == as_part(base).kind:
                    fields[name] = over(self.default("norm"), part, self.grammar.slots, name)
        return fields

    def position_reaches(self, embeddings: bool) -> bool:
        """Whether the default position scheme acts on embeddings, or inside layers."""
        written = self.defaults.get("position") if self.defaults else None
        entry = self.grammar.find("position", as_part(written).kind) if written else None
        if entry is None or not entry.acts:
            return True
        return "embeddings" in entry.acts if embeddings else bool(entry.acts - {"embeddings"})

    def layer_defaults(self) -> list[Located]:
        """The defaults that reach layers."""
        if self.defaults is None:
            return []
        keys = {"num_layers", *PATTERN, *self.grammar.option_keys}
        if not self.position_reaches(embeddings=False):
            keys -= {"position"}
        return [self.defaults.holding({key: child for key, child in self.defaults.mapping.items() if key in keys})]

    def part(self, slot: str, written: Located | None) -> Component | None:
        """The part that a value describes, or None if the value is invalid, which the validation of the node reports."""
        if written is None or written.value is INVALID:
            return None
        return part_of(slot, plain(written), self.grammar)

    def unused(self) -> None:
        """Adds an error for each default that reached no node."""
        self._unread("TFK011", self.defaults, self.grammar.default_keys, "no node uses the default `{}`")

    def unread(self, scopes: Sequence[Located]) -> None:
        """Adds an error for each key of a stack or a layer that no layer reads."""
        for scope in scopes:
            self._unread("TFK019", scope, {*PATTERN, *self.grammar.option_keys}, "no layer here reads `{}`")

    def _unread(self, code: str, scope: Located | None, keys: Collection[str], message: str) -> None:
        # If something could not be resolved, its defaults may only seem unused.
        for name, child in (scope.mapping if scope and not self.incomplete else {}).items():
            if name in keys and id(child) not in self.used and child.value is not INVALID:
                self.diagnostics.add(code, child.key or child.location, child.path, message.format(name), "remove it")


def part_of(slot: str, value: Any, grammar: Grammar) -> Component | None:
    """A part from its plain value, or None if the value is invalid."""
    try:
        kind = value if isinstance(value, str) else value.get("kind")
        entry = grammar.find(slot, kind)
        options = {} if isinstance(value, str) else {name: item for name, item in value.items() if name != "kind"}
        return (
            Component(entry, entry.options.model_validate(options, context={"catalogue": grammar.catalogue})) if entry else None
        )
    except ValidationError:
        return None
