"""The JSON Schema of written specs: short names for parts, `defaults`, layer patterns; inheritable fields are optional. It is
built from the installed parts, so that an editor agrees with `tfkit check`.

https://json-schema.org/draft/2020-12. Specs that extend another have definitions of their own: they may remove keys with null
and leave out `kind`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..catalogue import Catalogue
from ..slots.layer import Layer
from ..slots.node import NodeKind
from .grammar import GROUP, PATTERN, TOP, grammar_of
from .model import ModelSpec
from .schema_writer import Schema, SchemaWriter, document
from .versions import CURRENT

NAMES = {"pattern": r"^[^\d\W_]\w*$", "not": {"enum": list(TOP)}}


def json_schema(catalogue: Catalogue) -> Schema:
    """Build the JSON Schema of written specs as plain data, draft 2020-12."""
    grammar = grammar_of(catalogue)
    definitions: Schema = {}
    whole, part = (_SpecWriter(grammar, definitions, extending).spec() for extending in (False, True))
    return document("tfkit spec", whole, part, definitions)


class _SpecWriter(SchemaWriter):
    """The schemas of nodes, layers and `defaults`."""

    def spec(self) -> Schema:
        top = self.properties(ModelSpec, ("name", "reference", "description", "expect", "outputs"))
        top["tfkit"] = {"const": CURRENT, "description": "version of the spec language"}
        top["extends"] = {"type": "string", "description": "another spec, which this one changes"}
        top["defaults"] = self.optional(self.define("defaults", self.mapping(self.keys(self.grammar.default_keys))))
        nodes = {"type": "object", "propertyNames": NAMES, "additionalProperties": self.optional(self.node())}
        top["nodes"] = {**nodes, "description": "the nodes of the graph by name"}
        schema = self.mapping({key: top[key] for key in TOP})
        return {**schema, "required": ["tfkit", "name"] if self.extending else ["tfkit", "name", "nodes", "outputs"]}

    def keys(self, names: Iterable[str], kind_schemas: Schema | None = None) -> Schema:
        """The schemas of the keys of a stack, a layer item or `defaults`; `kind_schemas` are those of the kind of the node."""
        schemas: Schema = {}
        pattern = self.properties(Layer, PATTERN)
        for name in sorted(names):
            if name in self.grammar.option_keys:
                schemas[name] = self.optional(self.options_under(name))
            elif name == "num_layers":
                schemas[name] = self.optional({"type": "integer", "minimum": 1, "description": "how many equal layers"})
            elif name == "layers":
                schemas[name] = self.optional({"type": "array", "items": self.layer(), "minItems": 1})
            elif kind_schemas and name in kind_schemas:
                schemas[name] = kind_schemas[name]
            elif name in pattern:
                schemas[name] = pattern[name]
            else:
                schemas[name] = self.inherited(name)
        return schemas

    def inherited(self, name: str) -> Schema:
        """A plain default: the field of the first node kind that inherits it, because a name has one type everywhere."""
        for kind in self.grammar.node_kinds.values():
            if name in self.grammar.inherits(kind):
                return dict(self.properties(kind.options, (name,))[name])
        return {}

    def layer(self) -> Schema:
        name = "layer"
        if f"{self.prefix}{name}" not in self.definitions:
            self.definitions[f"{self.prefix}{name}"] = {}  # layers may contain layers: the reference comes before its target
            group_schemas = self.properties(Layer, GROUP[:2])
            self.definitions[f"{self.prefix}{name}"] = self.mapping(self.keys(self.grammar.layer_keys, group_schemas))
        return {"$ref": f"#/$defs/{self.prefix}{name}"}

    def options_under(self, key: str) -> Schema:
        kinds = self.grammar.option_keys[key]
        fields = self.union((kind.options for kind in kinds), self.grammar.option_fields(key))
        return self.define(f"options.{key}", self.mapping(fields))

    def node(self) -> Schema:
        kinds = self.grammar.node_kinds
        every = {key for kind in kinds.values() for key in self.grammar.node_keys(kind)}
        loose = dict.fromkeys(sorted(every), True)
        branches = {name: self.node_of(kind) for name, kind in kinds.items()}
        return self.by_kind("node", branches, self.mapping(loose), needed=not self.extending)

    def node_of(self, kind: NodeKind) -> Schema:
        layers = self.grammar.layers_field(kind)
        fields = self.properties(kind.options, [name for name in kind.options.model_fields if name != layers])
        if layers:
            fields = self.keys(self.grammar.node_keys(kind) - {"kind"}, fields)
        return {**self.mapping({"kind": {"const": kind.name}, **fields}), "description": kind.summary}
