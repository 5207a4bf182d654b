"""Checks the written tree before inheritance: shapes, keys, and the names of parts.

An invalid value is reported once, where it was written, and removed from the tree: an unknown key is dropped, a value of the
wrong shape becomes INVALID. Later steps can rely on the shapes, and a misspelt default is one error instead of one for each
node that inherits it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

from .grammar import TOP, Grammar, is_name, slots_of
from .hints import glued, unknown_key, unknown_name, which_kind
from .located import INVALID, Diagnostics, Located, short

NEEDED = {"name": "the name of the model", "nodes": "the nodes of the model", "outputs": "the nodes whose outputs it returns"}
Check = Callable[[Located], Located]


class Structure:
    """Checks a tree against the language of a catalogue. `spec` returns the tree without its invalid parts."""

    def __init__(self, grammar: Grammar, diagnostics: Diagnostics) -> None:
        self.grammar, self.diagnostics = grammar, diagnostics

    def spec(self, root: Located) -> Located:
        root = self.children(root, TOP, {"defaults": self.defaults, "nodes": self.nodes, "outputs": self.texts})
        for key, why in NEEDED.items():
            if key not in root.mapping and key not in self.diagnostics.meant:
                self.diagnostics.add("TFK030", root.location, "", f"`{key}` is missing", f"write {why}")
        return root

    def expect(self, node: Located, shape: type | tuple[type, ...], words: str) -> bool:
        """Whether a value has the shape that its place needs. INVALID has been reported already."""
        if isinstance(node.value, shape):
            return True
        if node.value is not INVALID:
            fix = glued(node.value) if isinstance(node.value, str) else ""
            fix = "write a value, or leave the key out" if node.value is None else fix
            self.diagnostics.add("TFK020", node.location, node.path, f"{words} is expected, {node.shown}", fix)
        return False

    def children(self, node: Located, allowed: Collection[str], checks: dict[str, Check]) -> Located:
        """A mapping with only its known keys, each child checked."""
        if not self.expect(node, dict, "a mapping"):
            return node.holding(INVALID)
        kept: dict[str, Located] = {}
        for name, child in node.mapping.items():
            if name not in allowed:
                unknown_key(name, child, node.path, allowed, self.grammar, self.diagnostics)
            else:
                kept[name] = checks[name](child) if name in checks else child
        return node.holding(kept)

    def texts(self, node: Located) -> Located:
        if not self.expect(node, list, "a list of names"):
            return node.holding(INVALID)
        return node.holding([item if self.expect(item, str, "a name") else item.holding(INVALID) for item in node.items])

    def defaults(self, node: Located) -> Located:
        return self.children(node, self.grammar.default_keys, self.checks(self.grammar.default_keys))

    def checks(self, keys: Collection[str]) -> dict[str, Check]:
        """The check of each key whose value is not plain."""
        checks: dict[str, Check] = {}
        for key in keys:
            if key == "layers":
                checks[key] = self.layers
            elif key == "sublayers":
                checks[key] = self.sublayers
            elif key in self.grammar.option_keys:
                checks[key] = self.options_under(key)
            elif key in self.grammar.slots:
                checks[key] = self.part_in(key)
        return checks

    def nodes(self, node: Located) -> Located:
        if not self.expect(node, dict, "a mapping from names to nodes"):
            return node.holding(INVALID)
        for name, child in node.mapping.items():
            location = child.key or child.location
            if name in TOP:
                self.diagnostics.add("TFK013", location, child.path, f"`{name}` is a key of the spec and cannot name a node")
            elif not is_name(name):
                fix = "use letters, digits and underscores, a letter first"
                self.diagnostics.add("TFK013", location, child.path, f"`{short(name)}` cannot name a node", fix)
        return node.holding({name: self.node(child) for name, child in node.mapping.items()})

    def node(self, node: Located) -> Located:
        if not self.expect(node, dict, "a mapping with `kind`"):
            return node.holding(INVALID)
        if not self.kind(node, "node"):
            return node
        kind = self.grammar.node_kinds[str(node.kind)]
        keys = self.grammar.node_keys(kind)
        checks = self.checks(keys if self.grammar.layers_field(kind) else slots_of(kind.options))
        return self.children(node, keys, checks)

    def kind(self, node: Located, slot: str, needed: bool = True) -> bool:
        """Whether the `kind` of a mapping names an entry of the slot."""
        kind = node.get("kind")
        if kind is None:
            if needed:
                self.diagnostics.add("TFK022", node.location, node.path, "`kind` is missing", which_kind(slot, self.grammar))
            return False
        if not self.expect(kind, str, "a name"):
            return False
        if self.grammar.find(slot, kind.value) is None:
            message, fix = unknown_name(slot, kind.value, self.grammar)
            self.diagnostics.add("TFK012", kind.location, node.path, message, fix)
            return False
        return True

    def layers(self, node: Located) -> Located:
        if not self.expect(node, list, "a list of layers"):
            return node.holding(INVALID)
        return node.holding([self.children(item, self.grammar.layer_keys, self.layer_checks) for item in node.items])

    @cached_property
    def layer_checks(self) -> dict[str, Check]:
        return self.checks(self.grammar.layer_keys)

    def sublayers(self, node: Located) -> Located:
        if not self.expect(node, list, "a list of sub-layers"):
            return node.holding(INVALID)
        return node.holding([self.part(item, "sublayer", False) for item in node.items])

    def options_under(self, key: str) -> Check:
        """The check of option keys such as `attention: {...}`."""

        def check(node: Located) -> Located:
            fields = self.grammar.option_fields(key)
            return self.children(node, fields, self.checks(fields & self.grammar.slots.keys()))

        return check

    def part_in(self, field: str) -> Check:
        """The check of a field that holds a part or a list of parts."""
        slot, many = self.grammar.slots[field], field in self.grammar.lists
        return lambda node: self.parts(node, slot) if many and isinstance(node.value, list) else self.part(node, slot, True)

    def parts(self, node: Located, slot: str) -> Located:
        parts = [self.part(item, slot, False) for item in node.items]
        return node.holding(INVALID if any(part.value is INVALID for part in parts) else parts)

    def part(self, node: Located, slot: str, partial: bool) -> Located:
        """A name or a mapping with options. With `partial`, another scope may give the kind."""
        if isinstance(node.value, str):
            if self.grammar.find(slot, node.value) is not None:
                return node
            message, fix = unknown_name(slot, node.value, self.grammar)
            self.diagnostics.add("TFK012", node.location, node.path, message, fix)
            return node.holding(INVALID)
        if not self.expect(node, dict, "a name or a mapping with `kind`"):
            return node.holding(INVALID)
        if "kind" in node.mapping or not partial:
            if not self.kind(node, slot):
                return node.holding(INVALID)
            return self.options(node, [self.grammar.find(slot, node.kind)])
        return self.options(node, self.grammar.catalogue.entries(slot))

    def options(self, node: Located, entries: list[Any]) -> Located:
        """The options of a part of one of these kinds."""
        models = [entry.options for entry in entries]
        keys = {"kind", *(name for model in models for name in model.model_fields)}
        slots = {name for model in models for name in slots_of(model)}
        return self.children(node, keys, self.checks(slots))
