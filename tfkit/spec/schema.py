"""The JSON Schema of a spec as people write it: short names for parts, `defaults`, layer patterns, everything optional that
may be inherited. Built from what is installed, so that an editor completes and refuses what `tfkit check` would.

https://json-schema.org/draft/2020-12. A spec that extends another may remove things with null and leave out `kind`; it has
definitions of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from ..catalogue import Catalogue
from ..slots.layer import Layer
from ..slots.node import NodeKind
from ..slots.options import Entry, Options
from .grammar import GROUP, PATTERN, TOP, Grammar
from .model import ModelSpec
from .versions import CURRENT

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAMES = {"pattern": r"^[^\d\W]\w*$", "not": {"enum": list(TOP)}}


def json_schema(catalogue: Catalogue) -> Schema:
    """The schema of the written form, for everything in a catalogue."""
    grammar = Grammar(catalogue)
    definitions: Schema = {}
    whole, part = (_Writer(grammar, definitions, extending).spec() for extending in (False, True))
    return {
        "$schema": DIALECT,
        "title": "tfkit spec",
        "type": "object",
        "if": {"required": ["extends"]},
        "then": part,
        "else": whole,
        "$defs": definitions,
    }


class _Lenient(GenerateJsonSchema):
    """Lets a field with a validator of a plugin's own be anything, where the plugin does not say what it is."""

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}


class _Writer:
    """Writes the definitions once, either for complete specs or for those that extend another."""

    def __init__(self, grammar: Grammar, definitions: Schema, extending: bool) -> None:
        self.grammar, self.definitions, self.extending = grammar, definitions, extending
        self.prefix = "extending." if extending else ""
        self.cache: dict[type[Options], Schema] = {}

    def spec(self) -> Schema:
        top = self.properties(ModelSpec, ("name", "reference", "description", "expect", "outputs"))
        top["tfkit"] = {"const": CURRENT, "description": "version of the spec language"}
        top["extends"] = {"type": "string", "description": "another spec, which this one changes"}
        top["defaults"] = self.optional(self.define("defaults", self.mapping(self.keys(self.grammar.default_keys))))
        nodes = {"type": "object", "propertyNames": NAMES, "additionalProperties": self.optional(self.node())}
        top["nodes"] = {**nodes, "description": "the nodes of the graph by name"}
        schema = self.mapping({key: top[key] for key in TOP})
        return {**schema, "required": ["tfkit", "name"] if self.extending else ["tfkit", "name", "nodes", "outputs"]}

    def define(self, name: str, schema: Schema) -> Schema:
        """A reference to a definition."""
        self.definitions.setdefault(f"{self.prefix}{name}", schema)
        return {"$ref": f"#/$defs/{self.prefix}{name}"}

    def optional(self, schema: Schema) -> Schema:
        """Where the spec extends another, null removes."""
        return {"anyOf": [schema, {"type": "null"}]} if self.extending else schema

    def mapping(self, properties: Schema) -> Schema:
        return {"type": "object", "properties": properties, "additionalProperties": False}

    def keys(self, names: Iterable[str], own: Schema | None = None) -> Schema:
        """The schemas of keys that a stack, a layer item or `defaults` may have; `own` are those of the node's kind."""
        found: Schema = {}
        pattern = self.properties(Layer, PATTERN)
        for name in sorted(names):
            if name in self.grammar.option_keys:
                found[name] = self.optional(self.options_under(name))
            elif name == "num_layers":
                found[name] = self.optional({"type": "integer", "minimum": 1, "description": "how many equal layers"})
            elif name == "layers":
                found[name] = self.optional({"type": "array", "items": self.layer(), "minItems": 1})
            elif own and name in own:
                found[name] = own[name]
            elif name in pattern:
                found[name] = pattern[name]
            else:
                found[name] = self.inherited(name)
        return found

    def inherited(self, name: str) -> Schema:
        """A plain default: the field of the first node kind that inherits it, for a name has one type everywhere."""
        for kind in self.grammar.node_kinds.values():
            if name in self.grammar.inherits(kind):
                return dict(self.properties(kind.options, (name,))[name])
        return {}

    def layer(self) -> Schema:
        name = "layer"
        if f"{self.prefix}{name}" not in self.definitions:
            self.definitions[f"{self.prefix}{name}"] = {}  # a layer may hold layers: the reference comes before its target
            own = self.properties(Layer, GROUP[:2])
            self.definitions[f"{self.prefix}{name}"] = self.mapping(self.keys(self.grammar.layer_keys, own))
        return {"$ref": f"#/$defs/{self.prefix}{name}"}

    def options_under(self, key: str) -> Schema:
        kinds = self.grammar.option_keys[key]
        fields = self.union((kind.options for kind in kinds), self.grammar.option_fields(key))
        return self.define(f"options.{key}", self.mapping(fields))

    def union(self, models: Iterable[type[Options]], names: Collection[str]) -> Schema:
        """Every field of several models; one that two of them define differently may be either."""
        found: dict[str, list[Schema]] = {}
        for model in models:
            for name, schema in self.properties(model, [name for name in model.model_fields if name in names]).items():
                if schema not in found.setdefault(name, []):
                    found[name].append(schema)
        return {name: schemas[0] if len(schemas) == 1 else {"anyOf": schemas} for name, schemas in sorted(found.items())}

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

    def slot(self, slot: str) -> Schema:
        """A name of an entry, or a mapping with its options."""
        name = f"slot.{slot}"
        if f"{self.prefix}{name}" not in self.definitions:
            self.definitions[f"{self.prefix}{name}"] = {}  # options may hold parts of the same slot
            entries = {name: self.grammar.find(slot, name) for name in self.grammar.names(slot)}
            branches = {kind: self.part(entry) for kind, entry in entries.items()}
            models = [entry.options for entry in entries.values()]
            every = self.union(models, {field for model in models for field in model.model_fields})
            choice = self.by_kind(f"part.{slot}", branches, self.mapping(every), needed=slot == "sublayer")
            names = {"enum": sorted(branches)}
            self.definitions[f"{self.prefix}{name}"] = {"if": {"type": "string"}, "then": names, "else": choice}
        return {"$ref": f"#/$defs/{self.prefix}{name}"}

    def part(self, entry: Entry) -> Schema:
        fields = self.properties(entry.options, entry.options.model_fields)
        return {**self.mapping({"kind": {"const": entry.name}, **fields}), "description": entry.summary}

    def by_kind(self, name: str, branches: dict[str, Schema], without: Schema, needed: bool) -> Schema:
        """A mapping judged by its `kind`; without one, by all that the slot knows, unless a kind is needed."""
        cases = [
            {
                "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": self.define(f"{name}.{kind}", branch),
            }
            for kind, branch in sorted(branches.items())
        ]
        return {
            "type": "object",
            "properties": {"kind": {"enum": sorted(branches)}},
            **({"required": ["kind"]} if needed else {}),
            "allOf": [*cases, {"if": {"not": {"required": ["kind"]}}, "then": without}],
        }

    def properties(self, model: type[Options], names: Iterable[str]) -> Schema:
        """The fields of an options model, as far as asked for, with slots in place."""
        if model not in self.cache:
            template = f"#/$defs/{self.prefix}{model.__module__}.{model.__qualname__}.{{model}}"
            schema = model.model_json_schema(schema_generator=_Lenient, ref_template=template)
            inside = schema.get("$defs", {})
            if "$ref" in schema:  # a model that holds itself
                schema = inside.pop(model.__name__)
            for inner, definition in inside.items():
                self.definitions[f"{self.prefix}{model.__module__}.{model.__qualname__}.{inner}"] = self.inside(definition)
            self.cache[model] = schema.get("properties", {})
        return {name: self.optional(self.field(self.cache[model][name])) for name in names}

    def inside(self, definition: Schema) -> Schema:
        """A model inside an options model; its required fields may come from elsewhere."""
        kept = {key: value for key, value in definition.items() if key not in ("title", "required")}
        if "properties" in kept:
            kept["properties"] = {name: self.optional(self.field(value)) for name, value in kept["properties"].items()}
        return kept

    def field(self, schema: Any) -> Any:
        """A schema of Pydantic's without titles, with `x-slot` replaced by what the slot holds."""
        if isinstance(schema, list):
            return [self.field(item) for item in schema]
        if not isinstance(schema, dict):
            return schema
        kept = {key: self.field(value) for key, value in schema.items() if key not in ("title", "x-slot", "x-many")}
        if "x-slot" not in schema:
            return kept
        slot = self.slot(schema["x-slot"])
        one_or_more = {"anyOf": [slot, {"type": "array", "items": slot, "minItems": 1}]}
        return {**kept, **(one_or_more if schema.get("x-many") else slot)}
