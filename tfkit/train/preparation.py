"""The preparation of a new run: read the data, train the tokenisers, fit the spec to them, write all files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..builder import build
from ..catalogue import Catalogue
from ..data import (
    KINDS,
    MASK,
    Data,
    TextTokeniser,
    adds_symbols,
    check_images,
    corpora_of,
    count_rows,
    image_texts,
    prepare,
    prepare_images,
    tokeniser_texts,
)
from ..errors import Diagnostic, InputError, TfkitError
from ..errors.elsewhere import without_quotes
from ..files import write_whole
from ..recipe import (
    Recipe,
    check_corpora,
    check_guided_alignment,
    check_image_settings,
    check_metric,
    check_sampling,
    check_teacher_forcing,
    chosen_for,
    files_in,
    load_recipe,
)
from ..spec import to_yaml
from .digests import digests_of, file_digests, write_digests
from .fit_spec import check_trained, fitted_spec, image_rule_in, roles_in
from .pretrained import Pretrained, read_pretrained
from .run_directory import check_new, end_preparation
from .run_files import DATA, MODELS, RECIPE, SPEC
from .run_recipe import check_processes, write_recipe
from .validation import check_bleu, marks_entities


def check_tokenisers(recipe: Recipe, pretrained: Pretrained) -> None:
    """Raises InputError if the recipe, or its kind of data, needs other tokenisers than the pretrained model has."""
    place, tokenisers = pretrained.place, list(pretrained.tokenisers.values())
    imported = any(tokeniser.imported for tokeniser in tokenisers)
    diagnostics = _imported(recipe, place) if imported else _compare(recipe, place, tokenisers)
    if KINDS[recipe.data.kind].masks and any(tokeniser.mask_id is None for tokeniser in tokenisers):
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
    largest = max(tokenisers, key=lambda tokeniser: tokeniser.size)
    has = {**largest.settings, "joint": len({id(tokeniser) for tokeniser in tokenisers}) == 1}
    written_keys = recipe.written_keys("tokeniser")
    diagnostics: list[Diagnostic] = []
    for name, value in written_keys.items():
        if name == "symbols" and all(adds_symbols(recipe, tokeniser) for tokeniser in tokenisers):
            continue
        if name in ("dropout", "sampling", "extend"):  # how rows are read, not what the tokeniser is
            continue
        if value != has.get(name) and not (name == "vocab_size" and value == _requested_size(place)):
            written, used = (_describe(name, setting) for setting in (value, has.get(name)))
            fix = "leave `tokeniser` out" if name == "kind" else f"write {_yaml(name, has.get(name))}, or leave it out"
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
    if name == "symbols":
        return "no `symbols`" if not value else f"`symbols: [{', '.join(value)}]`"
    return f"`{name}: {str(value).lower()}`"


@dataclass(frozen=True)
class Preparation:
    """`changes` to the spec that the data needed, in the form of `--set`; `digests` of the inputs of the run."""

    changes: list[str]
    digests: dict[str, str]


def check_start(recipe: Recipe, directory: Path, processes: int, fsdp: bool) -> None:
    """The checks that are fast. Raises StoreError for a directory that is not empty, InputError for a wrong recipe."""
    check_new(directory)
    check_image_settings(recipe)
    if recipe.data.kind == "images":
        check_images(recipe)
    else:
        corpora_of(recipe)
    check_metric(recipe)
    check_corpora(recipe)
    check_bleu(recipe)
    check_teacher_forcing(recipe)
    check_sampling(recipe)
    check_guided_alignment(recipe)
    check_processes(recipe, processes, fsdp)


def prepare_run(
    recipe: Recipe, directory: Path, catalogue: Catalogue, backend: Any, positions: Mapping[str, int]
) -> Preparation:
    """Prepare the data of a run, and write all files except the recipe, which `finish_preparation` writes. `positions` are the
    maximum lengths of the model's inputs, by column of the data. Returns the changes to the spec, and the digests."""
    roles = roles_in(recipe, catalogue, backend)
    check_trained(recipe, catalogue)
    pretrained = read_pretrained(recipe, roles, catalogue)
    if pretrained is not None:
        check_tokenisers(recipe, pretrained)
        if not KINDS[recipe.data.kind].labelled:  # the spec does not depend on the data: report its errors before the encoding
            spec, _ = fitted_spec(recipe, catalogue, roles, pretrained.tokenisers, 0)
            pretrained.load_into(build(spec, catalogue, device="meta"), recipe, roles, ())
    with _without_foreign_text(recipe):
        data = _prepared(recipe, directory, catalogue, None if pretrained is None else pretrained.tokenisers, positions)
        _check_entities(recipe, data)
    needs = recipe.stopping.patience is not None or recipe.validation.metric != "loss" or recipe.schedule.kind == "plateau"
    if data.validation is None and needs:
        names = "`stopping.patience`, `validation.metric` and the schedule `plateau`"
        message = f"{names} need validation data, and there are none"
        fix = "name validation files, or write `data.held_out`; by default no row is held out if there are fewer than 20"
        raise InputError(recipe.diagnostic("TFK112", "data", message, fix))
    spec, changes = fitted_spec(recipe, catalogue, roles, data.tokenisers, len(data.labels))
    for name, text in (tokeniser_texts(data.tokenisers) | image_texts(recipe)).items():
        write_whole(directory / name, text)
    write_whole(directory / SPEC, to_yaml(spec))
    digests = digests_of(recipe, data, file_digests(directory), pretrained)
    write_digests(directory, digests)
    return Preparation(changes, digests)


def _prepared(
    recipe: Recipe,
    directory: Path,
    catalogue: Catalogue,
    tokenisers: Mapping[str, TextTokeniser] | None,
    positions: Mapping[str, int],
) -> Data:
    if recipe.data.kind == "images":
        return prepare_images(recipe, directory / DATA, image_rule_in(recipe, catalogue))
    return prepare(recipe, directory / DATA, _vocab_size(recipe) if tokenisers is None else 0, tokenisers, positions)


@contextmanager
def _without_foreign_text(recipe: Recipe) -> Iterator[None]:
    """Errors about the files of a recipe, without their text if one lies elsewhere."""
    try:
        yield
    except InputError as error:
        names = [f"data.{name}" for name in files_in(recipe.data.options.model_dump(exclude_none=True))]
        if not any(map(recipe.reaches_elsewhere, (*names, "tokeniser.extend"))):
            raise
        raise InputError(map(without_quotes, error.diagnostics)) from None


def _check_entities(recipe: Recipe, data: Data) -> None:
    """Raises InputError for F1 of tags that mark no entities."""
    if KINDS[recipe.data.kind].tagged and recipe.validation.metric == "f1" and not marks_entities(data.labels):
        message = f"F1 is that of entities, and the tags are {', '.join(f'`{label}`' for label in data.labels[:8])}"
        fix = "mark entities with B-TYPE, I-TYPE and O, or write metric: accuracy"
        raise InputError(recipe.diagnostic("TFK112", "validation.metric", message, fix))


def finish_preparation(recipe: Recipe, directory: Path) -> None:
    """Write the recipe. From then on the run can be resumed."""
    write_recipe(recipe, directory)
    end_preparation(directory)


def _vocab_size(recipe: Recipe) -> int:
    """The vocabulary size of the recipe, or the default for a corpus of this size."""
    written = getattr(recipe.tokeniser.options, "vocab_size", None)
    return int(written) if written is not None else chosen_for(count_rows(recipe)).vocab_size
