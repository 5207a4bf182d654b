"""Starting from another model: its weights of equal name and shape are taken, and its tokenisers; the rest is drawn.

https://aclanthology.org/D16-1163/
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import RootModel
from torch import Tensor

from ..catalogue import Catalogue
from ..data import KINDS, LABELS, Roles, TextTokeniser, read_labels, read_tokenisers, roles_of
from ..errors import Diagnostic, InputError, TfkitError
from ..files import file_record, read_model
from ..io import load
from ..io.layout import WEIGHTS
from ..io.loading import read_weights
from ..nn.model import Model
from ..nn.tokens import TokenLogits, Tokens
from ..recipe import MASK, Recipe, load_recipe
from ..text import model_in
from .run_directory import DIGESTS, RECIPE

LEAST = 0.5
"""The share of its weights that a model takes from the one that it starts from, unless its recipe says otherwise."""
DIGEST = "pretrained weights"
"""The name of their digest among those of a run."""


@dataclass(frozen=True)
class SkippedTensor:
    """A tensor that was not taken: of the new model, and then it is as it was `drawn`, or of the other one. `there` is the
    shape of the other one of its name."""

    name: str
    shape: tuple[int, ...]
    why: str
    drawn: bool
    there: tuple[int, ...] | None = None


@dataclass(frozen=True)
class LoadReport:
    """What was taken from the model in `place`: the tensors of these `names`, `count` of the `total` weights of the new one;
    and what was `left`."""

    place: Path
    names: tuple[str, ...]
    count: int
    total: int
    left: tuple[SkippedTensor, ...]


@dataclass(frozen=True)
class Pretrained:
    """A model to start from: its `tokenisers` by column of the new data, its labels if it is a classifier, the `digest` of its
    weights."""

    place: Path
    tokenisers: Mapping[str, TextTokeniser]
    labels: tuple[str, ...]
    digest: str

    @torch.no_grad()
    def give(self, model: Model, recipe: Recipe, roles: Roles, labels: tuple[str, ...]) -> LoadReport:
        """Copy what fits into a model whose classes are `labels`. Raises InputError where that is less than the recipe's
        `pretrained_share`, or nothing."""
        own, theirs = model.state_dict(), read_weights(self.place)
        taken: list[str] = []
        left = [SkippedTensor(name, tuple(each.shape), "not here", False) for name, each in theirs.items() if name not in own]
        others = f"nodes.{roles.output}." if labels and labels != self.labels else None
        for name, tensor in own.items():
            shape = tuple(tensor.shape)
            if name not in theirs:
                left.append(SkippedTensor(name, shape, "not there", True))
            elif theirs[name].shape != tensor.shape:
                left.append(SkippedTensor(name, shape, "of another shape", True, tuple(theirs[name].shape)))
            elif others is not None and name.startswith(others):
                left.append(SkippedTensor(name, shape, "for other labels there", True))
            else:
                tensor.copy_(theirs[name])
                taken.append(name)
        if not taken:
            there, here = (", ".join(_parts(names)) for names in (theirs, own))
            message = (
                f"no weight of {self.place} has the name and shape of one of `{model.plan.name}`: parts {there} and {here}"
            )
            raise InputError(
                recipe.diagnostic("TFK117", "pretrained", message, "train a spec whose parts have its names and sizes")
            )
        self._check_share(model, recipe, set(taken))
        count, total = (_count(own, names) for names in (taken, own))
        return LoadReport(self.place, tuple(taken), count, total, tuple(left))

    def _check_share(self, model: Model, recipe: Recipe, taken: Collection[str]) -> None:
        """Tables of tokens do not count: any model of these tokenisers and this width has them."""
        counts = {part: [0, 0] for part, node in model.nodes.items() if not isinstance(node, (Tokens, TokenLogits))}
        for name, tensor in model.state_dict().items():
            if (part := name.split(".")[1]) in counts:
                counts[part][0] += tensor.numel() * (name in taken)
                counts[part][1] += tensor.numel()
        given, total = (sum(pair[side] for pair in counts.values()) for side in (0, 1))
        least = LEAST if recipe.pretrained_share is None else recipe.pretrained_share
        if is_share(given, total, least):
            return
        each = ", ".join(f"{some:,} of {of:,} of `{part}`" for part, (some, of) in counts.items() if of)
        message = (
            f"{self.place} has {given:,} of the {total:,} weights of `{model.plan.name}` beside tables of tokens "
            f"({100 * given / total:.1f} %: {each}), and {100 * least:g} % are wanted"
        )
        fix = (
            f"train a spec whose parts have its names and sizes, or write `pretrained_share: {int(100 * given / total) / 100}`"
        )
        path = "pretrained" if recipe.pretrained_share is None else "pretrained_share"
        raise InputError(recipe.diagnostic("TFK117", path, message, fix))


def is_share(given: int, total: int, least: float) -> bool:
    """Whether so many of the total are the share that is wanted, as it is written: 0.07 * 100 would be more than 7."""
    return total == 0 or given / total >= least


def shape_text(shape: Iterable[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def _count(tensors: Mapping[str, Tensor], names: Iterable[str]) -> int:
    return sum(tensors[name].numel() for name in names)


def _parts(names: Mapping[str, Tensor]) -> list[str]:
    return list(dict.fromkeys(f"`{name.split('.')[1]}`" for name in names))


def read_pretrained(recipe: Recipe, roles: Roles, catalogue: Catalogue) -> Pretrained | None:
    """The model that a recipe starts from, None where it names none. Raises InputError for one that cannot be read."""
    if recipe.pretrained is None:
        return None
    try:
        place = model_in(Path(recipe.pretrained))
        model = load(place, backend="auto", catalogue=catalogue)  # of which only the weights are used
        found = _tokenisers(place, model)
        labels = read_labels(place) if os.path.lexists(place / LABELS) else ()
    except TfkitError as reason:
        first = reason.diagnostics[0]
        message = f"{recipe.pretrained} is no model to start from: {first.message}"
        raise InputError(
            recipe.diagnostic(
                "TFK117", "pretrained", message, "name a run of `tfkit train` that has a best model, or a model of it"
            )
        ) from None
    columns = KINDS[recipe.data.kind].files
    tokenisers = {column: found.get(roles.of(column)) or list(found.values())[-1] for column in columns}
    return Pretrained(place, tokenisers, labels, file_record(place / WEIGHTS)["sha256"])


def _tokenisers(place: Path, model: Model) -> dict[str, TextTokeniser]:
    """The tokenisers of a model by its input nodes, that of the target last."""
    if len(model.plan.inputs) == 1:
        return dict.fromkeys(model.plan.inputs, read_tokenisers(place, ("target",))["target"])
    roles = roles_of(model.plan, "parallel")
    return {roles.of(column): each for column, each in read_tokenisers(place, ("source", "target")).items()}


def check_tokenisers(recipe: Recipe, pretrained: Pretrained) -> None:
    """Raises InputError where a recipe asks for other tokenisers than those that are taken, or its data do."""
    place, tokenisers = pretrained.place, list(pretrained.tokenisers.values())
    largest = max(tokenisers, key=lambda each: each.size)
    has = {**largest.settings, "joint": len({id(each) for each in tokenisers}) == 1}
    wrote = recipe.wrote("tokeniser")
    diagnostics: list[Diagnostic] = []
    for name, wanted in wrote.items():
        if wanted != has[name] and not (name == "vocab_size" and wanted == _wanted(place)):
            written, there = (_describe(name, value) for value in (wanted, has[name]))
            fix = "leave `tokeniser` out" if name == "kind" else f"write {_yaml(name, has[name])}, or leave it out"
            message = f"{written} is written, and {place}, whose tokeniser is taken, has {there}"
            diagnostics.append(recipe.diagnostic("TFK117", f"tokeniser.{name}", message, fix))
    if "joint" not in wrote and len(tokenisers) > 1 and not has["joint"]:
        message = f"{place} has {_describe('joint', False)}"
        diagnostics.append(recipe.diagnostic("TFK117", "tokeniser.joint", message, "write `joint: false` under `tokeniser`"))
    if KINDS[recipe.data.kind].masks and not all(each.masks for each in tokenisers):
        message = f"data of kind `{recipe.data.kind}` need the token `{MASK}`, which the tokeniser of {place} does not have"
        diagnostics.append(
            recipe.diagnostic("TFK117", "pretrained", message, "start from a model that was trained on masked text")
        )
    if diagnostics:
        raise InputError(diagnostics)


def _wanted(place: Path) -> Any:
    """The size of vocabulary that the run of a model asked for: a text may have had less to give."""
    if place.parent.name == "models":
        with suppress(TfkitError):
            return load_recipe(place.parent.parent / RECIPE).wrote("tokeniser").get("vocab_size")
    return None


def _describe(name: str, value: Any) -> str:
    """A setting of a tokeniser in words."""
    if name == "vocab_size":
        return f"a vocabulary of {value:,} ids"
    if name == "joint":
        return "one vocabulary for both sides" if value else "a vocabulary for each side"
    return f"`{value}`" if name == "kind" else _yaml(name, value)


def _yaml(name: str, value: Any) -> str:
    return f"`{name}: {str(value).lower()}`"


def digest_of(pretrained: Pretrained | None, directory: Path) -> dict[str, str]:
    """The digest of the weights that a run started from: of those that were read, or as the run wrote it down."""
    if pretrained is not None:
        return {DIGEST: pretrained.digest}
    written = read_digests(directory) if (directory / DIGESTS).is_file() else {}
    return {DIGEST: written[DIGEST]} if DIGEST in written else {}


class Digests(RootModel[dict[str, str]]):
    """What a run began with, by name."""


def read_digests(directory: Path) -> dict[str, str]:
    """The digests of what a run began with. Raises StoreError."""
    return read_model(directory / DIGESTS, Digests).root
