"""Resolves the layers of a stack: each distinct layer gets its placement, norm, position, dropout and sublayers.

    defaults < node < group of layers < layer < sub-layer            nearer wins
    attention < self_attention                                       within one place
Repetition is not expanded: `num_layers: 1000000000` is one layer with `repeat: 1000000000`.
"""

from __future__ import annotations

from ..slots.node import NodeKind
from ..slots.sublayer import SublayerKind
from .grammar import GROUP, PATTERN, is_name
from .inherit import Inheritance
from .located import INVALID, Located, child_path, short
from .merge import as_part, over

MAX_DESCRIBED = 1_000
"""The largest number of sub-layers that a spec describes, without repetitions. Each takes a millisecond."""


def resolve_stack(node: Located, kind: NodeKind, inheritance: Inheritance) -> Located:
    """A stack node with all inherited fields, its final norm and its layer pattern."""
    return _Stack(node, kind, inheritance).resolved()


class _Stack:
    def __init__(self, node: Located, kind: NodeKind, inheritance: Inheritance) -> None:
        self.node, self.kind, self.inheritance = node, kind, inheritance
        self.grammar, self.diagnostics = inheritance.grammar, inheritance.diagnostics
        self.layers_field = str(self.grammar.layers_field(kind))
        self.scopes: list[Located] = [node]
        self.last: tuple[Located | None, Located | None] = (None, None)
        memory = node.get("memory")
        self.reads_memory = memory is not None and memory.value is not None

    def resolved(self) -> Located:
        layers = self.pattern()
        fields = {
            name: child
            for name, child in self.inheritance.plain_fields(self.node, self.kind).items()
            if name not in PATTERN and name not in self.grammar.option_keys and name not in ("num_layers", "layers")
        }
        fields[self.layers_field] = layers or self.node.holding(INVALID)
        self.inheritance.unread(self.scopes)
        if "final_norm" in self.kind.options.model_fields and "final_norm" not in fields:
            placement, norm = self.last
            part = self.inheritance.part("placement", placement)
            if part and norm and part.entry.final_norm(part.options):
                fields["final_norm"] = norm
        return self.node.holding(fields)

    def pattern(self) -> Located | None:
        number, layers = self.node.get("num_layers"), self.node.get("layers")
        base = self.inheritance.layer_defaults()
        if number is not None and layers is not None:
            message = "`num_layers` and `layers` both give the number of layers"
            self.diagnostics.add("TFK031", number.key or number.location, self.node.path, message, "remove one")
            self.inheritance.incomplete = True
            return None
        for scope in base:
            default = self.inheritance.fold([scope], "num_layers")
            number = default if number is None and layers is None else number
        if layers is not None:
            if layers.value is INVALID:
                self.inheritance.incomplete = True
                return layers
            return layers.holding(self.items(layers.items, [*base, self.node]))
        if number is None:
            message = "`num_layers` or `layers` is missing"
            if not self.diagnostics.meant & {"num_layers", "layers"}:
                self.diagnostics.add("TFK030", self.node.location, self.node.path, message, "write the number of layers")
            self.inheritance.incomplete = True
            return None
        leaf = self.leaf(self.node.holding({"repeat": number}), [*base, self.node])
        return number.holding([leaf])

    def items(self, items: list[Located], scopes: list[Located]) -> list[Located]:
        resolved: list[Located] = []
        for item in items:
            self.scopes.append(item)
            inner = item.get("layers")
            if item.value is INVALID or inner is None:
                resolved.append(self.leaf(item, [*scopes, item]))
            elif inner.value is INVALID:
                self.inheritance.incomplete = True
                resolved.append(item.holding(INVALID))
            else:
                group = {name: child for name, child in item.mapping.items() if name in GROUP}
                resolved.append(item.holding({**group, "layers": inner.holding(self.items(inner.items, [*scopes, item]))}))
        return resolved

    def leaf(self, item: Located, scopes: list[Located]) -> Located:
        """One layer with all inherited values."""
        if item.value is INVALID:
            self.inheritance.incomplete = True
            return item
        layer = {name: child for name, child in item.mapping.items() if name in GROUP}
        for name in PATTERN:
            value = self.inheritance.fold(scopes, name)
            if name == "sublayers" and (value is None or value.value is not INVALID):
                value = self.sublayers(value, scopes)
            if value is not None:
                self.inheritance.incomplete |= name == "sublayers" and value.value is INVALID
                layer[name] = value
        self.needs(layer)
        self.last = layer.get("placement"), layer.get("norm")
        return item.holding(layer)

    def needs(self, layer: dict[str, Located]) -> None:
        """Adds an error if a layer has no placement, or no norm although its placement uses one."""
        if "placement" not in layer:
            self.missing("placement", "how norms and residuals are placed: `post`, `pre`, ...")
        elif "norm" not in layer:
            placement = self.inheritance.part("placement", layer["placement"])
            names = tuple(str(name.value) for part in layer["sublayers"].items if (name := part.get("name")))
            if placement and placement.entry.norm_sites(placement.options, names):
                self.missing("norm", f"placement `{placement}` needs one")

    def missing(self, name: str, why: str) -> None:
        if name in self.diagnostics.meant:
            return
        message = f"`{name}` is missing: {why}"
        self.diagnostics.add("TFK030", self.node.location, self.node.path, message, "write it here or in `defaults`")

    def sublayers(self, written: Located | None, scopes: list[Located]) -> Located:
        """The sub-layers of a layer, each with its options and its name."""
        place = self.node if written is None else written
        names = ["self_attention", *(["cross_attention"] if self.reads_memory else []), "ffn"]
        items = [self.standard(name) for name in names] if written is None else written.items
        self.inheritance.sublayers += len(items)
        if self.inheritance.sublayers > MAX_DESCRIBED:
            message, fix = f"the layers up to here describe more than {MAX_DESCRIBED:,} sub-layers", "let equal layers `repeat`"
            self.diagnostics.fatal("TFK001", place.location, self.node.path, message, fix)
        seen: dict[str, int] = {}
        names_so_far: set[str] = set()
        parts: list[Located] = []
        for item in items:
            part = self.sublayer(as_part(item), scopes, seen)
            name = part.get("name")
            if name is not None and isinstance(name.value, str):
                self.check_name(name, item, names_so_far)
            parts.append(part)
        return place.holding(parts)

    def standard(self, name: str) -> Located:
        """A default sub-layer, located at its stack."""
        return Located(name, self.node.location, child_path(self.node.path, name), name)

    def sublayer(self, item: Located, scopes: list[Located], seen: dict[str, int]) -> Located:
        kind: SublayerKind | None = self.grammar.find("sublayer", item.kind)
        if item.value is INVALID or kind is None:
            self.inheritance.incomplete = True
            return item
        seen[kind.name] = number = seen.get(kind.name, 0) + 1
        options: Located | None = None
        for scope in scopes:
            for key in kind.option_keys:
                scope_options = self.inheritance.fold([scope], key)
                if scope_options is not None and scope_options.value is INVALID:
                    return item.holding(INVALID)
                if scope_options is not None:
                    options = scope_options if options is None else over(options, scope_options, self.grammar.slots)
        fields = dict((item if options is None else over(options, item, self.grammar.slots)).mapping)
        if "name" not in fields:
            stem = kind.name.replace(".", "_")
            fields["name"] = item.holding(stem if number == 1 else f"{stem}_{number}")
        return item.holding(self.inheritance.with_norm_options(fields))

    def check_name(self, name: Located, item: Located, names_so_far: set[str]) -> None:
        if not is_name(name.value):
            message = f"`{short(name.value)}` cannot name a sub-layer"
            fix = "use letters, digits and underscores, a letter first"
            self.diagnostics.add("TFK013", name.location, name.path, message, fix)
        elif name.value in names_so_far:
            message = f"two sub-layers of one layer are called `{short(name.value)}`"
            self.diagnostics.add("TFK013", name.location, item.path, message, "give one of them another `name`")
        names_so_far.add(name.value)
