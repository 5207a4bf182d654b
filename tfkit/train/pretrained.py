"""Starts training from another model: tensors of equal name and shape are copied, and its tokenisers are used. All other
tensors keep their initial values.

https://aclanthology.org/D16-1163/
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..catalogue import Catalogue
from ..data import KINDS, Roles, Spelling, TextTokeniser, has_labels, read_labels, read_tokenisers, roles_of
from ..errors import InputError, SpecError, TfkitError
from ..errors.elsewhere import without_quotes, without_text
from ..io import load, model_in
from ..io.loading import all_weights
from ..io.saved_files import read_versions
from ..nn.model import Model
from ..nn.tokens import TokenLogits, Tokens
from ..recipe import Recipe

MIN_SHARE = 0.5
"""The share of a model's weights that must be loaded, unless the recipe has `pretrained_share`."""


@dataclass(frozen=True)
class SkippedTensor:
    """A tensor that was not loaded.

    Attributes:
        name: Its name.
        shape: Its shape.
        reason: Why it was not loaded.
        initialised: Whether it is a tensor of the new model, which keeps its initial values, or of the pretrained one.
        pretrained_shape: The shape of the pretrained tensor of the same name, if it differs.
    """

    name: str
    shape: tuple[int, ...]
    reason: str
    initialised: bool
    pretrained_shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class LoadReport:
    """The tensors that were loaded from a pretrained model, and those that were not.

    Attributes:
        place: The directory of the pretrained model.
        names: The tensors that were loaded.
        loaded: The number of weights in these.
        total: The number of weights of the new model.
        skipped: The other tensors of both models.
        extended: The tables whose old rows were loaded, with the numbers of these and of new rows: each new one is the mean of
            those of the old pieces that spell its piece.
    """

    place: Path
    names: tuple[str, ...]
    loaded: int
    total: int
    skipped: tuple[SkippedTensor, ...]
    extended: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Pretrained:
    """A model to start from.

    Attributes:
        place: Its directory.
        tokenisers: Its tokenisers, by column of the new data.
        labels: Its labels, if it is a classifier.
        digest: The SHA-256 of its weights.
    """

    place: Path
    tokenisers: Mapping[str, TextTokeniser]
    labels: tuple[str, ...]
    digest: str

    @torch.no_grad()
    def load_into(
        self,
        model: Model,
        recipe: Recipe,
        roles: Roles,
        labels: tuple[str, ...],
        tokenisers: Mapping[str, TextTokeniser] | None = None,
    ) -> LoadReport:
        """Copy every tensor of equal name and shape into a model. If its classes, `labels`, differ from those of the pretrained
        model, the output is not loaded. Its tokenisers may have more pieces. Raises InputError if less than `pretrained_share`
        of the weights can be loaded, or none."""
        weights, pretrained = model.state_dict(), all_weights(self.place)
        loaded: list[str] = []
        extended: list[tuple[str, int, int]] = []
        skipped = [
            SkippedTensor(name, tuple(tensor.shape), "not in the new model", False)
            for name, tensor in pretrained.items()
            if name not in weights
        ]
        output = f"nodes.{roles.output}." if labels and labels != self.labels else None
        for name, tensor in weights.items():
            shape = tuple(tensor.shape)
            if name not in pretrained:
                skipped.append(SkippedTensor(name, shape, "not in the pretrained model", True))
            elif (spelling := self._spelling(name, tensor, pretrained[name], model, roles, tokenisers or {})) is not None:
                old = pretrained[name]
                tensor[: len(old)] = old
                for row, ids in enumerate(spelling.ids(), len(old)):
                    tensor[row] = old[ids].mean(0)
                extended.append((name, len(old), len(tensor) - len(old)))
            elif pretrained[name].shape != tensor.shape:
                skipped.append(SkippedTensor(name, shape, "of another shape", True, tuple(pretrained[name].shape)))
            elif output is not None and name.startswith(output):
                skipped.append(SkippedTensor(name, shape, "pretrained for other labels", True))
            else:
                tensor.copy_(pretrained[name])
                loaded.append(name)
        if not loaded:
            there, here = (", ".join(_nodes(names)) for names in (pretrained, weights))
            message = (
                f"no weight of {self.place} has the name and shape of one of `{model.plan.name}`: parts {there} and {here}"
            )
            raise InputError(
                recipe.diagnostic("TFK117", "pretrained", message, "train a spec whose parts have its names and sizes")
            )
        self._check_share(model, recipe, set(loaded))
        count, total = (_count(weights, names) for names in (loaded, weights))
        return LoadReport(self.place, tuple(loaded), count, total, tuple(skipped), tuple(extended))

    def _spelling(
        self,
        name: str,
        tensor: Tensor,
        old: Tensor,
        model: Model,
        roles: Roles,
        tokenisers: Mapping[str, TextTokeniser],
    ) -> Spelling | None:
        """How the new rows of a table are spelled by its old rows; None for a tensor that is no table with more rows."""
        node = name.split(".")[1]
        if old.shape == tensor.shape or not isinstance(model.nodes[node], (Tokens, TokenLogits)):
            return None
        column = "source" if node == roles.source else "target"
        before, after = self.tokenisers.get(column), tokenisers.get(column)
        if before is None or after is None or old.shape[1:] != tensor.shape[1:]:
            return None
        return Spelling(before, after) if (before.size, after.size) == (len(old), len(tensor)) else None

    def _check_share(self, model: Model, recipe: Recipe, loaded: Collection[str]) -> None:
        """Raises InputError if too small a share is loaded. Token tables do not count: all models with these tokenisers and
        this width have equal ones."""
        nodes = [name for name, node in model.nodes.items() if not isinstance(node, (Tokens, TokenLogits))]
        loaded_by, total_by = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0)
        for name, tensor in model.state_dict().items():
            if (node := name.split(".")[1]) in total_by:
                loaded_by[node] += tensor.numel() * (name in loaded)
                total_by[node] += tensor.numel()
        count, total = sum(loaded_by.values()), sum(total_by.values())
        minimum = MIN_SHARE if recipe.pretrained_share is None else recipe.pretrained_share
        if is_share(count, total, minimum):
            return
        node_counts = ", ".join(f"{loaded_by[node]:,} of {total_by[node]:,} of `{node}`" for node in nodes if total_by[node])
        message = (
            f"{self.place} has {count:,} of the {total:,} weights of `{model.plan.name}` without token tables "
            f"({100 * count / total:.1f} %: {node_counts}), and {100 * minimum:g} % are required"
        )
        fix = (
            f"train a spec whose parts have its names and sizes, or write `pretrained_share: {int(100 * count / total) / 100}`"
        )
        path = "pretrained" if recipe.pretrained_share is None else "pretrained_share"
        raise InputError(recipe.diagnostic("TFK117", path, message, fix))


def is_share(count: int, total: int, minimum: float) -> bool:
    """Whether `count` is at least this share of the total. It divides, because 0.07 * 100 > 7 in float64."""
    return total == 0 or count / total >= minimum


def shape_text(shape: Iterable[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def _count(tensors: Mapping[str, Tensor], names: Iterable[str]) -> int:
    return sum(tensors[name].numel() for name in names)


def _nodes(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(f"`{name.split('.')[1]}`" for name in names))


def read_pretrained(recipe: Recipe, roles: Roles, catalogue: Catalogue) -> Pretrained | None:
    """The model that a recipe starts from; None if it names none. Raises InputError if it cannot be read."""
    if recipe.pretrained is None:
        return None
    try:
        place = model_in(Path(recipe.pretrained))
        model = load(place, backend="auto", catalogue=catalogue)  # only its weights are used
        by_node = _tokenisers(place, model)
        labels = read_labels(place) if has_labels(place) else ()
    except TfkitError as reason:
        first = reason.diagnostics[0]
        if recipe.reaches_elsewhere("pretrained"):
            first = without_text(first, "the recipe") if isinstance(reason, SpecError) else without_quotes(first)
        message = f"{recipe.pretrained} is no model to start from: {first.message}"
        fix = "name a run of `tfkit train` that has a best model, or a model of it"
        raise InputError(recipe.diagnostic("TFK117", "pretrained", message, fix)) from None
    versions = read_versions(place)
    if recipe.lora is not None and versions.base is not None:
        message = f"{place} is an adapter itself, and adapters need whole weights below them"
        raise InputError(recipe.diagnostic("TFK117", "pretrained", message, f"merge it first: `tfkit merge {place} -o DIR`"))
    columns = KINDS[recipe.data.kind].files
    tokenisers = {column: by_node.get(roles.of(column)) or list(by_node.values())[-1] for column in columns}
    return Pretrained(place, tokenisers, labels, versions.weights_record.sha256)


def _tokenisers(place: Path, model: Model) -> dict[str, TextTokeniser]:
    """The tokenisers of a model by input node, that of the target last."""
    if len(model.plan.inputs) == 1:
        return dict.fromkeys(model.plan.inputs, read_tokenisers(place, ("target",))["target"])
    roles = roles_of(model.plan, "parallel")
    return {roles.of(column): tokeniser for column, tokeniser in read_tokenisers(place, ("source", "target")).items()}
