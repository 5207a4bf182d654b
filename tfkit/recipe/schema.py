"""The JSON Schema of a recipe as people write it: kinds of data, tokenisers, optimisers and schedules with their options.

It refuses what `tfkit train` would, but for rules between two numbers (`steps` of a cosine is more than `warmup_steps`), which
JSON Schema has no words for, and `5.0` for a whole number, which it takes for one.
"""

from __future__ import annotations

from ..spec.schema_writer import Schema, SchemaWriter, document, required
from ..spec.versions import CURRENT
from .parts import recipe_grammar
from .recipe import Recipe, Stopping


def recipe_schema() -> Schema:
    """The schema of the written form. A recipe that extends another may remove things with null and leave things out."""
    grammar, definitions = recipe_grammar(), Schema()
    whole = _RecipeWriter(grammar, definitions, extending=False, alone=True).recipe()
    part = _RecipeWriter(grammar, definitions, extending=True).recipe()
    return document("tfkit recipe", whole, part, definitions)


class _RecipeWriter(SchemaWriter):
    def recipe(self) -> Schema:
        top = self.properties(Recipe, Recipe.model_fields)
        top["tfkit"] = {"const": CURRENT, "description": "version of the language"}
        top["extends"] = {"type": "string", "minLength": 1, "description": "another recipe, which this one changes"}
        if self.alone:
            ends = [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in Stopping.model_fields]
            top["stopping"] = {**top["stopping"], "anyOf": ends}
        schema = self.mapping({key: top[key] for key in self.grammar.top})
        return {**schema, "required": required(Recipe) if self.alone else ["tfkit", "name"]}
