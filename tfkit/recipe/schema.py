"""The JSON Schema of a written recipe: kinds of data, tokenisers, optimisers and schedules with their options.

It agrees with `tfkit train` with two exceptions: it cannot express rules between two numbers (`steps` of a cosine exceeds
`warmup_steps`), and it accepts `5.0` as a whole number.
"""

from __future__ import annotations

from ..spec.schema_writer import Schema, SchemaWriter, document, required
from ..spec.versions import CURRENT
from .parts import recipe_grammar
from .recipe import Recipe, Stopping


def recipe_schema() -> Schema:
    """Build the JSON Schema of written recipes.

    Returns:
        The schema as plain data, draft 2020-12. A recipe that extends another may remove keys with null and leave keys out.
    """
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
