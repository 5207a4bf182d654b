"""The written tree, checked before any of its values is inherited: shapes, keys, and the names of parts.

What is wrong is reported once, where it was written, and taken out of the tree: an unknown key is dropped, a value of the
wrong shape becomes a HOLE. So whatever comes later can rely on what it meets, and a misspelt default is one fault and not
one for each node that inherits it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

from .grammar import TOP, Grammar, slots_of
from .hints import glued, unknown_key, unknown_name, which_kind
from .located import HOLE, Faults, Marked, short

NEEDED = {"name": "what the model is called", "nodes": "which nodes the model has", "outputs": "which nodes give its outputs"}
Check = Callable[[Marked], Marked]


class Structure:
    """Checks a tree against the language of a catalogue; `spec` gives the tree back without what it refused."""

    def __init__(self, grammar: Grammar, faults: Faults) -> None:
        self.grammar, self.faults = grammar, faults

    def spec(self, root: Marked) -> Marked:
        root = self.children(root, TOP, {"defaults": self.defaults, "nodes": self.nodes, "outputs": self.texts})
        for key, why in NEEDED.items():
            if key not in root.mapping and key not in self.faults.meant:
                self.faults.add("TFK030", root.mark, "", f"`{key}` is missing", f"say {why}")
        return root

    def expect(self, node: Marked, shape: type | tuple[type, ...], words: str) -> bool:
        """Whether a value has the shape that its place needs. What is a HOLE already has its fault."""
        if isinstance(node.value, shape):
            return True
        if node.value is not HOLE:
            fix = glued(node.value) if isinstance(node.value, str) else ""
            fix = "write a value, or leave the key out" if node.value is None else fix
            self.faults.add("TFK020", node.mark, node.path, f"{words} is expected, {node.shown}", fix)
        return False

    def children(self, node: Marked, allowed: Collection[str], checks: dict[str, Check]) -> Marked:
        """A mapping with its known keys only, each child checked."""
        if not self.expect(node, dict, "a mapping"):
            return node.holding(HOLE)
        kept: dict[str, Marked] = {}
        for name, child in node.mapping.items():
            if name not in allowed:
                unknown_key(name, child, node.path, allowed, self.grammar, self.faults)
            else:
                kept[name] = checks[name](child) if name in checks else child
        return node.holding(kept)

    def texts(self, node: Marked) -> Marked:
        if not self.expect(node, list, "a list of names"):
            return node.holding(HOLE)
        return node.holding([item if self.expect(item, str, "a name") else item.holding(HOLE) for item in node.items])

    def defaults(self, node: Marked) -> Marked:
        return self.children(node, self.grammar.default_keys, self.checks(self.grammar.default_keys))

    def checks(self, keys: Collection[str]) -> dict[str, Check]:
        """The check of each key that holds more than a plain value."""
        found: dict[str, Check] = {}
        for key in keys:
            if key == "layers":
                found[key] = self.layers
            elif key == "sublayers":
                found[key] = self.sublayers
            elif key in self.grammar.option_keys:
                found[key] = self.options_under(key)
            elif key in self.grammar.slots:
                found[key] = self.part_in(key)
        return found

    def nodes(self, node: Marked) -> Marked:
        if not self.expect(node, dict, "a mapping from names to nodes"):
            return node.holding(HOLE)
        for name, child in node.mapping.items():
            mark = child.key or child.mark
            if name in TOP:
                self.faults.add("TFK013", mark, child.path, f"`{name}` is a key of the spec and cannot name a node")
            elif not name.isidentifier():
                fix = "use letters, digits and underscores"
                self.faults.add("TFK013", mark, child.path, f"`{short(name)}` cannot name a node", fix)
        return node.holding({name: self.node(child) for name, child in node.mapping.items()})

    def node(self, node: Marked) -> Marked:
        if not self.expect(node, dict, "a mapping with `kind`"):
            return node.holding(HOLE)
        if not self.kind(node, "node"):
            return node
        kind = self.grammar.node_kinds[str(node.kind)]
        keys = self.grammar.node_keys(kind)
        checks = self.checks(keys if self.grammar.layers_field(kind) else slots_of(kind.options))
        return self.children(node, keys, checks)

    def kind(self, node: Marked, slot: str, needed: bool = True) -> bool:
        """Whether a mapping names an entry of the slot."""
        kind = node.get("kind")
        if kind is None:
            if needed:
                self.faults.add("TFK022", node.mark, node.path, "`kind` is missing", which_kind(slot, self.grammar))
            return False
        if not self.expect(kind, str, "a name"):
            return False
        if self.grammar.find(slot, kind.value) is None:
            message, fix = unknown_name(slot, kind.value, self.grammar)
            self.faults.add("TFK012", kind.mark, node.path, message, fix)
            return False
        return True

    def layers(self, node: Marked) -> Marked:
        if not self.expect(node, list, "a list of layers"):
            return node.holding(HOLE)
        return node.holding([self.children(item, self.grammar.layer_keys, self.layer_checks) for item in node.items])

    @cached_property
    def layer_checks(self) -> dict[str, Check]:
        return self.checks(self.grammar.layer_keys)

    def sublayers(self, node: Marked) -> Marked:
        if not self.expect(node, list, "a list of sub-layers"):
            return node.holding(HOLE)
        return node.holding([self.part(item, "sublayer", False) for item in node.items])

    def options_under(self, key: str) -> Check:
        """The check of `attention: {...}` and its like, wherever it stands."""

        def check(node: Marked) -> Marked:
            fields = self.grammar.option_fields(key)
            return self.children(node, fields, self.checks(fields & self.grammar.slots.keys()))

        return check

    def part_in(self, field: str) -> Check:
        """The check of a field that holds a part, or several in a list."""
        slot, many = self.grammar.slots[field], field in self.grammar.lists
        return lambda node: self.parts(node, slot) if many and isinstance(node.value, list) else self.part(node, slot, True)

    def parts(self, node: Marked, slot: str) -> Marked:
        parts = [self.part(item, slot, False) for item in node.items]
        return node.holding(HOLE if any(part.value is HOLE for part in parts) else parts)

    def part(self, node: Marked, slot: str, partial: bool) -> Marked:
        """A name or a mapping with options. `partial`: what is nearer or farther may bring the kind."""
        if isinstance(node.value, str):
            if self.grammar.find(slot, node.value) is not None:
                return node
            message, fix = unknown_name(slot, node.value, self.grammar)
            self.faults.add("TFK012", node.mark, node.path, message, fix)
            return node.holding(HOLE)
        if not self.expect(node, dict, "a name or a mapping with `kind`"):
            return node.holding(HOLE)
        if "kind" in node.mapping or not partial:
            if not self.kind(node, slot):
                return node.holding(HOLE)
            return self.options(node, [self.grammar.find(slot, node.kind)])
        return self.options(node, self.grammar.catalogue.entries(slot))

    def options(self, node: Marked, entries: list[Any]) -> Marked:
        """The options of a part whose kind is one of these."""
        models = [entry.options for entry in entries]
        keys = {"kind", *(name for model in models for name in model.model_fields)}
        slots = {name for model in models for name in slots_of(model)}
        return self.children(node, keys, self.checks(slots))
