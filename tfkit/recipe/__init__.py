"""Training recipes: the same YAML and the same located errors as specs. No torch."""

from .chosen import Chosen, chosen_for, recipe_text
from .load import FILES, describes_model, describes_training, load_recipe, recipe_of
from .parts import END, MASK, MASK_ID, PAD, SPECIALS, START, UNKNOWN, recipe_schema
from .recipe import Parameters, Recipe, check_image_settings, check_metric, check_teacher_forcing, without_smoothing

__all__ = [
    "END",
    "FILES",
    "MASK",
    "MASK_ID",
    "PAD",
    "SPECIALS",
    "START",
    "UNKNOWN",
    "Chosen",
    "Parameters",
    "Recipe",
    "check_image_settings",
    "check_metric",
    "check_teacher_forcing",
    "chosen_for",
    "describes_model",
    "describes_training",
    "load_recipe",
    "recipe_of",
    "recipe_schema",
    "recipe_text",
    "without_smoothing",
]
