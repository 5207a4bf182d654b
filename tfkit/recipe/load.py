"""From a file to a `Recipe`, with located errors as for specs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import SpecError
from ..files import open_regular
from ..spec.extends import extended, read_extended
from ..spec.located import Diagnostics, Located, short
from ..spec.overrides import apply
from ..spec.published import file_named, published_file
from ..spec.reader import read_text
from ..spec.validate import validate
from ..spec.versions import migrate
from .parts import PARTS, recipe_grammar
from .recipe import Recipe

FILES = frozenset(
    f"{prefix}{name}"
    for name in ("source", "target", "alignment", "distilled", "text", "table", "questions", "images", "labels")
    for prefix in ("", "validation_")
)
"""The options of `data` that name files."""


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Read a YAML or JSON recipe. File names in it are relative to the recipe.

    Args:
        path: the file, or the name of a shipped recipe (`sample`, see `tfkit specs`).
        overrides: changes in the form of `--set`, such as `batching.tokens=8192`. An override that starts with `model.` changes
            the spec (`model.defaults.dropout=0.1`).

    Returns:
        The resolved recipe.

    Raises:
        SpecError: all errors at once, each located in the file or the override that caused it.
    """
    file = file_named(os.fspath(path), "recipe")
    return _recipe(read_extended(file, recipe_grammar().slots, diagnostics := Diagnostics()), overrides, diagnostics)


def recipe_of(text: str | bytes, file: str, overrides: Sequence[str] = ()) -> Recipe:
    """Like `load_recipe`, for text in memory. `file` is its name in errors; `extends` is relative to it."""
    return _recipe(_extended(text, file, diagnostics := Diagnostics()), overrides, diagnostics)


def describes_model(text: str | bytes, file: str) -> bool:
    """Whether the text of a file is a spec, which has nodes. Raises SpecError if it is neither a spec nor a recipe."""
    return "nodes" in _extended(text, file, Diagnostics()).mapping


def describes_training(text: str | bytes, file: str) -> bool:
    """Whether the text of a file is a recipe, which names a model and has no nodes. Raises SpecError if it is neither."""
    mapping = _extended(text, file, Diagnostics()).mapping
    return "nodes" not in mapping and bool({"model", "data", "stopping"} & mapping.keys())


def _extended(text: str | bytes, file: str, diagnostics: Diagnostics) -> Located:
    return extended(migrate(read_text(text, file, diagnostics), diagnostics), file, recipe_grammar().slots, diagnostics)


def _recipe(root: Located, overrides: Sequence[str], diagnostics: Diagnostics) -> Recipe:
    grammar = recipe_grammar()
    changes = [override.removeprefix("model.") for override in overrides if override.startswith("model.")]
    others = [override for override in overrides if not override.startswith("model.")]
    root = _with_kinds(root, apply(root, others, grammar, diagnostics), others)
    fields = {key: child for key, child in root.mapping.items() if key != "extends"}
    for name in fields.keys() & {"model", "pretrained"}:
        fields[name] = _relative_to_cwd(fields[name])
    if "vectors" in fields:
        tables = fields["vectors"]
        files = {node: _relative_to_cwd(file) for node, file in tables.mapping.items()}
        fields["vectors"] = tables.holding(files) if files else tables
    if "model" in fields:
        fields["model"] = _published(root.mapping["model"], fields["model"])
        _check_regular(fields["model"], diagnostics)
    if "tokeniser" in fields and (file := fields["tokeniser"].mapping.get("extend")) is not None:
        tokeniser = fields["tokeniser"]
        fields["tokeniser"] = tokeniser.holding({**tokeniser.mapping, "extend": _relative_to_cwd(file)})
    if "data" in fields:
        fields["data"] = _files_relative_to_cwd(fields["data"])
    tree = root.holding(fields)
    recipe: Recipe | None = validate(tree, grammar, diagnostics)
    if recipe is None or len(diagnostics):
        raise diagnostics.error()
    recipe._tree = tree
    if recipe.pretrained is None and recipe.pretrained_share is not None:
        message = "it is a share of the weights of `pretrained`, which is not written"
        raise SpecError(recipe.diagnostic("TFK117", "pretrained_share", message, "write `pretrained` too, or leave it out"))
    return recipe if not changes else recipe.model_copy(update={"changes": (*recipe.changes, *changes)})


def _with_kinds(written: Located, root: Located, overrides: Sequence[str]) -> Located:
    """Adds the default `kind` to parts whose options only overrides set (`optimiser.eps=1e-8`), unless an override removes the
    part."""
    fields = dict(root.mapping)
    for slot in {override.partition("=")[0].partition(".")[0] for override in overrides} & PARTS.keys():
        node = fields.get(slot)
        if node is None or node.kind is not None or "kind" in node.mapping or not node.mapping:
            continue
        if written.get(slot) is None or f"{slot}=null" in overrides:
            kind = Located(Recipe.model_fields[slot].default, node.location, f"{slot}.kind")
            fields[slot] = node.holding({"kind": kind, **node.mapping})
    return root.holding(fields)


def _check_regular(name: Located, diagnostics: Diagnostics) -> None:
    """Adds an error if the spec of a recipe is no regular file. It is read more than once."""
    try:
        if isinstance(name.value, str) and os.path.exists(name.value) and not os.path.isdir(name.value):
            open_regular(name.value).close()
    except OSError as reason:
        message = f"`{short(name.value)}` cannot be read: {reason.strerror}"
        diagnostics.add("TFK000", name.location, "model", message, "name the file of a spec")


def _files_relative_to_cwd(data: Located) -> Located:
    """The data of a recipe, or one of its corpora, with the names of files relative to the working directory."""
    if not data.mapping:
        return data
    files = {name: _relative_to_cwd(child) if name in FILES else child for name, child in data.mapping.items()}
    if "corpora" in files and files["corpora"].items:
        files["corpora"] = files["corpora"].holding([_files_relative_to_cwd(corpus) for corpus in files["corpora"].items])
    return data.holding(files)


def files_in(data: Mapping[str, Any]) -> dict[str, str]:
    """The files that the options of `data` name, by key: `source`, `corpora.0.source`."""
    files = {name: value for name, value in data.items() if name in FILES and value is not None}
    for number, corpus in enumerate(data.get("corpora") or ()):
        files |= {f"corpora.{number}.{name}": path for name, path in files_in(corpus).items()}
    return files


def _published(written: Located, placed: Located) -> Located:
    """`model`, which may name a shipped spec: the file of it, if there is none of that name."""
    shipped = published_file(written.value, "spec") if isinstance(written.value, str) else None
    return placed if shipped is None or os.path.lexists(placed.value) else placed.holding(shipped)


def _relative_to_cwd(name: Located) -> Located:
    """A file name relative to the working directory. Names in a file are relative to that file."""
    if not isinstance(name.value, str) or not os.path.isfile(name.location.file):
        return name
    return name.holding(os.path.join(os.path.dirname(name.location.file), name.value))
