"""The check that a recipe fits the tokenisers of the model that it starts from."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from ..data import KINDS, TextTokeniser
from ..errors import Diagnostic, InputError, TfkitError
from ..recipe import MASK, Recipe, load_recipe
from .pretrained import Pretrained
from .run_files import MODELS, RECIPE


def check_tokenisers(recipe: Recipe, pretrained: Pretrained) -> None:
    """Raises InputError if the recipe, or its kind of data, needs other tokenisers than the pretrained model has."""
    place, tokenisers = pretrained.place, list(pretrained.tokenisers.values())
    imported = any(each.imported for each in tokenisers)
    diagnostics = _imported(recipe, place) if imported else _compare(recipe, place, tokenisers)
    if KINDS[recipe.data.kind].masks and any(each.mask_id is None for each in tokenisers):
        message = f"data of kind `{recipe.data.kind}` need the token `{MASK}`, which the tokeniser of {place} does not have"
        diagnostics.append(
            recipe.diagnostic("TFK117", "pretrained", message, "start from a model that was trained on masked text")
        )
    if diagnostics:
        raise InputError(diagnostics)


def _imported(recipe: Recipe, place: Path) -> list[Diagnostic]:
    """The settings that a recipe writes of an imported tokeniser."""
    message = f"{place} has an imported tokeniser, which no setting describes"
    written = recipe.written_keys("tokeniser")
    return [recipe.diagnostic("TFK117", f"tokeniser.{name}", message, "leave `tokeniser` out") for name in written]


def _compare(recipe: Recipe, place: Path, tokenisers: list[TextTokeniser]) -> list[Diagnostic]:
    """The settings of a recipe that its tokenisers do not have."""
    largest = max(tokenisers, key=lambda each: each.size)
    has = {**largest.settings, "joint": len({id(each) for each in tokenisers}) == 1}
    written_keys = recipe.written_keys("tokeniser")
    diagnostics: list[Diagnostic] = []
    for name, value in written_keys.items():
        if value != has[name] and not (name == "vocab_size" and value == _requested_size(place)):
            written, used = (_describe(name, each) for each in (value, has[name]))
            fix = "leave `tokeniser` out" if name == "kind" else f"write {_yaml(name, has[name])}, or leave it out"
            message = f"{written} is written, but {place}, whose tokeniser is used, has {used}"
            diagnostics.append(recipe.diagnostic("TFK117", f"tokeniser.{name}", message, fix))
    if "joint" not in written_keys and len(tokenisers) > 1 and not has["joint"]:
        message = f"{place} has {_describe('joint', False)}"
        diagnostics.append(recipe.diagnostic("TFK117", "tokeniser.joint", message, "write `joint: false` under `tokeniser`"))
    return diagnostics


def _requested_size(place: Path) -> Any:
    """The vocabulary size in the recipe of a model's run. A small text gives a smaller vocabulary."""
    if place.parent.name == MODELS:
        with suppress(TfkitError):
            return load_recipe(place.parent.parent / RECIPE).written_keys("tokeniser").get("vocab_size")
    return None


def _describe(name: str, value: Any) -> str:
    """A setting of a tokeniser, in words."""
    if name == "vocab_size":
        return f"a vocabulary of {value:,} ids"
    if name == "joint":
        return "one vocabulary for both sides" if value else "a vocabulary for each side"
    return f"`{value}`" if name == "kind" else _yaml(name, value)


def _yaml(name: str, value: Any) -> str:
    return f"`{name}: {str(value).lower()}`"
