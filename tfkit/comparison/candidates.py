"""The recipes of a comparison: loaded, named, and checked to be comparable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..catalogue import Catalogue
from ..errors import Diagnostic, InputError
from ..files import file_record
from ..recipe import FILES, Recipe, files_in, load_recipe
from ..spec import load_spec, to_json

TOKEN_LOSS = ("parallel", "language", "texts", "masked", "masked_pairs")
"""The kinds of data whose loss is per token, and so depends on the tokeniser."""


@dataclass(frozen=True)
class Candidate:
    """A recipe of a comparison.

    Attributes:
        recipe: The file of the recipe.
        overrides: Changes to it, in the form of `--set`.
        name: Its name in the comparison; that of the file unless given.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Loaded:
    """A candidate with a unique name, its recipe, and the digest of recipe, spec and data files."""

    name: str
    candidate: Candidate
    recipe: Recipe
    digest: str


def load_candidates(candidates: Sequence[Candidate], catalogue: Catalogue) -> list[Loaded]:
    """Load the recipes.

    Raises:
        SpecError: a recipe or its spec is wrong.
        InputError: the recipes cannot be compared.
    """
    loaded = []
    for name, candidate in zip(unique_names(candidates), candidates, strict=True):
        recipe = load_recipe(candidate.recipe, candidate.overrides)
        loaded.append(Loaded(name, candidate, recipe, _digest(recipe, catalogue)))
    diagnostics = [diagnostic for other in loaded for diagnostic in _reasons(loaded[0], other)]
    if diagnostics:
        raise InputError(diagnostics)
    return loaded


def unique_names(candidates: Sequence[Candidate]) -> list[str]:
    """The names: given ones, or those of the files, with those of their directories where two files have one name."""
    paths = [Path(candidate.recipe).absolute() for candidate in candidates]
    names = [candidate.name or path.stem for candidate, path in zip(candidates, paths, strict=True)]
    names = [
        f"{path.parent.name}-{name}" if names.count(name) > 1 and not candidate.name else name
        for name, candidate, path in zip(names, candidates, paths, strict=True)
    ]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(Diagnostic("TFK160", f"two recipes have the name `{repeated[0]}`", "name each recipe once"))
    wrong = [name for name in names if name in (".", "..") or "/" in name or not name.isprintable()]
    if wrong:
        raise InputError(Diagnostic("TFK160", f"`{wrong[0]}` cannot be the name of a directory", "choose another name"))
    return names


def _reasons(first: Loaded, other: Loaded) -> list[Diagnostic]:
    """Why the scores of two recipes cannot be compared."""

    def refused(path: str, message: str, fix: str) -> Diagnostic:
        return other.recipe.diagnostic("TFK160", path, message, fix)

    if not _validation_data(other.recipe):
        return [refused("data", f"`{other.name}` has no validation data", "name validation files, or write `held_out`")]
    if other is first:
        return []
    diagnostics = []
    if _metric(first.recipe) != _metric(other.recipe):
        message = f"`{first.name}` and `{other.name}` have different settings of the score: "
        message += f"{_metric(first.recipe)} and {_metric(other.recipe)}"
        diagnostics.append(refused("validation", message, "write the same `validation` in both"))
    if _validation_data(first.recipe) != _validation_data(other.recipe):
        message = f"`{first.name}` and `{other.name}` have different validation data"
        diagnostics.append(
            refused("data", message, "name the same validation files, or hold out as many rows of the same files")
        )
    elif _metric(other.recipe)["metric"] == "loss" and _tokens(first.recipe) != _tokens(other.recipe):
        message = f"`{first.name}` and `{other.name}` have different tokenisers, and a loss per token depends on them"
        diagnostics.append(refused("tokeniser", message, "use one tokeniser, or a metric of text such as `bleu`"))
    return diagnostics


def _metric(recipe: Recipe) -> dict[str, Any]:
    validation = recipe.validation
    if validation.metric == "loss":
        return {"metric": "loss"}
    names = ("metric", "beams", "sentences", "corpus", "lowercase", "filters", "prefix", "target_language")
    return {name: value for name in names if (value := getattr(validation, name)) is not None}


def _validation_data(recipe: Recipe) -> dict[str, str]:
    """The content and the settings of the validation data; empty without them."""
    options = recipe.data.options.model_dump(exclude_none=True)
    corpora = options.get("corpora", ())
    files = {name: path for name, path in files_in(options).items() if "validation_" in name}
    held_out = {f"corpora.{at}.held_out": corpus["held_out"] for at, corpus in enumerate(corpora) if "held_out" in corpus}
    held_out |= {"held_out": options["held_out"]} if "held_out" in options else {}
    if held_out:
        files = files_in(options) | held_out
    elif not files:
        return {}
    columns = {name: value for name, value in options.items() if name.endswith("_column") or name in ("header", "hidden")}
    return {"kind": recipe.data.kind, **{name: _content(name, value) for name, value in {**files, **columns}.items()}}


def _tokens(recipe: Recipe) -> Any:
    """What a loss per token depends on, besides the model."""
    if recipe.data.kind not in TOKEN_LOSS:
        return None
    options = recipe.data.options.model_dump(exclude_none=True)
    return recipe.written().get("tokeniser"), recipe.pretrained, {n: _content(n, v) for n, v in files_in(options).items()}


def _digest(recipe: Recipe, catalogue: Catalogue) -> str:
    """The digest of all that affects the score of a run, except the seed."""
    ignored = ("name", "description", "reference", "model", "seed", "keeping")
    written = {key: value for key, value in recipe.written().items() if key not in ignored}
    options = recipe.data.options.model_dump(exclude_none=True)
    files = {name: _content(name, value) for name, value in {**options, **files_in(options)}.items()}
    spec = to_json(load_spec(recipe.model, catalogue, recipe.changes, named_by=recipe.names("model")))
    return hashlib.sha256(json.dumps([{**written, "data": files}, spec], sort_keys=True, allow_nan=False).encode()).hexdigest()


def _content(name: str, value: Any) -> str:
    """The digest of a file, or the text of another value. A directory, or a file that cannot be read, has its path."""
    if name.rpartition(".")[2] not in FILES:
        return str(value)
    try:
        return str(file_record(Path(value).resolve())["sha256"])
    except OSError:
        return str(Path(value).resolve())
