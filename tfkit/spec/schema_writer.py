"""JSON Schema of written options models and their slots: a part is a name, or a mapping whose `kind` selects the schema.

https://json-schema.org/draft/2020-12
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from ..slots.options import Entry, Options
from .grammar import Grammar

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Lenient(GenerateJsonSchema):
    """Accepts any value for a field whose validator has no JSON Schema."""

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}


def document(title: str, whole: Schema, part: Schema, definitions: Schema) -> Schema:
    """The schema of a file: complete, or extending another."""
    return {
        "$schema": DIALECT,
        "title": title,
        "type": "object",
        "if": {"required": ["extends"]},
        "then": part,
        "else": whole,
        "$defs": definitions,
    }


def required(model: type[Options]) -> list[str]:
    """The fields of a model that have no default."""
    return [name for name, field in model.model_fields.items() if field.is_required()]


class SchemaWriter:
    """Writes the definitions, either for complete files or for files that extend another. With `alone` nothing is inherited: an
    option without a default must be written at the part."""

    def __init__(self, grammar: Grammar, definitions: Schema, extending: bool, alone: bool = False) -> None:
        self.grammar, self.definitions, self.extending, self.alone = grammar, definitions, extending, alone
        self.prefix = "extending." if extending else ""
        self.cache: dict[type[Options], Schema] = {}

    def define(self, name: str, schema: Schema) -> Schema:
        """A reference to a definition."""
        self.definitions.setdefault(f"{self.prefix}{name}", schema)
        return {"$ref": f"#/$defs/{self.prefix}{name}"}

    def optional(self, schema: Schema) -> Schema:
        """The schema, or null in a file that extends another, where null removes."""
        return {"anyOf": [schema, {"type": "null"}]} if self.extending else schema

    def mapping(self, properties: Schema) -> Schema:
        return {"type": "object", "properties": properties, "additionalProperties": False}

    def union(self, models: Iterable[type[Options]], names: Collection[str]) -> Schema:
        """The fields of several models. A field with two definitions may match either."""
        schemas_by_name: dict[str, list[Schema]] = {}
        for model in models:
            for name, schema in self.properties(model, [name for name in model.model_fields if name in names]).items():
                if schema not in schemas_by_name.setdefault(name, []):
                    schemas_by_name[name].append(schema)
        return {
            name: schemas[0] if len(schemas) == 1 else {"anyOf": schemas} for name, schemas in sorted(schemas_by_name.items())
        }

    def slot(self, slot: str) -> Schema:
        """A name of an entry, or a mapping with its options."""
        name = f"slot.{slot}"
        if f"{self.prefix}{name}" not in self.definitions:
            self.definitions[f"{self.prefix}{name}"] = {}  # options may contain parts of the same slot
            entries = {name: self.grammar.find(slot, name) for name in self.grammar.names(slot)}
            branches = {kind: self.part(entry) for kind, entry in entries.items()}
            models = [entry.options for entry in entries.values()]
            every = self.union(models, {field for model in models for field in model.model_fields})
            choice = self.by_kind(f"part.{slot}", branches, self.mapping(every), needed=self.alone or slot == "sublayer")
            names = {"enum": sorted(kind for kind, branch in branches.items() if "required" not in branch)}
            self.definitions[f"{self.prefix}{name}"] = {"if": {"type": "string"}, "then": names, "else": choice}
        return {"$ref": f"#/$defs/{self.prefix}{name}"}

    def part(self, entry: Entry) -> Schema:
        fields = self.properties(entry.options, entry.options.model_fields)
        schema = {**self.mapping({"kind": {"const": entry.name}, **fields}), "description": entry.summary}
        missing = required(entry.options) if self.alone else []
        return {**schema, "required": missing} if missing else schema

    def by_kind(self, name: str, branches: dict[str, Schema], without: Schema, needed: bool) -> Schema:
        """A mapping whose `kind` selects the schema. Without a kind that is not `needed`, it has the fields of any entry."""
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
        """The named fields of an options model, with the schemas of their slots."""
        if model not in self.cache:
            template = f"#/$defs/{self.prefix}{model.__module__}.{model.__qualname__}.{{model}}"
            schema = model.model_json_schema(schema_generator=_Lenient, ref_template=template)
            inside = schema.get("$defs", {})
            if "$ref" in schema:  # a model that contains itself
                schema = inside.pop(model.__name__)
            for inner, definition in inside.items():
                self.definitions[f"{self.prefix}{model.__module__}.{model.__qualname__}.{inner}"] = self.inside(definition)
            self.cache[model] = schema.get("properties", {})
        return {name: self.optional(self.field(self.cache[model][name])) for name in names}

    def inside(self, definition: Schema) -> Schema:
        """A model inside an options model. Its required fields may be inherited."""
        dropped = ("title",) if self.alone else ("title", "required")
        kept = {key: value for key, value in definition.items() if key not in dropped}
        if "description" in kept:
            kept["description"] = " ".join(kept["description"].split())
        if "properties" in kept:
            kept["properties"] = {name: self.optional(self.field(value)) for name, value in kept["properties"].items()}
        return kept

    def field(self, schema: Any) -> Any:
        """A schema from Pydantic without titles, with `x-slot` replaced by the schema of the slot."""
        if isinstance(schema, list):
            return [self.field(item) for item in schema]
        if not isinstance(schema, dict):
            return schema
        kept = {key: self.field(value) for key, value in schema.items() if key not in ("title", "x-slot", "x-many")}
        if kept.get("type") == "array":  # Pydantic writes limits of a tuple as those of a text
            kept = {{"minLength": "minItems", "maxLength": "maxItems"}.get(key, key): value for key, value in kept.items()}
        if "x-slot" not in schema:
            return kept
        slot = self.slot(schema["x-slot"])
        one_or_more = {"anyOf": [slot, {"type": "array", "items": slot, "minItems": 1}]}
        return {**kept, **(one_or_more if schema.get("x-many") else slot)}
