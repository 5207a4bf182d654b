"""One run of training, from text to a model: prepare the data, build, train, validate, keep.

recipe = tfkit.load_recipe("specs/recipes/translate-small.yaml", ["data.source=train.en", "data.target=train.de"])
tfkit.train(recipe, "runs/en-de")
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from ..builder import build
from ..catalogue import Catalogue, load_catalogue
from ..data import (
    KINDS,
    TRAIN,
    VALIDATION,
    Data,
    Roles,
    count_rows,
    files_of,
    prepare,
    read_data,
    read_tokenisers,
    roles_of,
    tokeniser_texts,
)
from ..errors import Fault, InputError, StoreError
from ..files import write_whole
from ..recipe import Recipe, chosen_for, load_recipe
from ..spec import load_spec, to_yaml
from ..store import file_facts, read_json
from .compiled import check_compiler
from .fit_spec import fitted_spec, roles_in
from .keep import Keeper
from .progress import Progress, Watcher
from .run_directory import DIGESTS, LOG, RECIPE, SPEC, check_new, cut_log, sweep
from .trainer import Trainer


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the `reason`, the `progress`, and the directory of the best `model`."""

    reason: str
    progress: Progress
    model: Path


def train(
    recipe: Recipe,
    directory: str | Path,
    *,
    device: str | torch.device = "cpu",
    backend: Any = None,
    watchers: Sequence[Watcher] = (),
    catalogue: Catalogue | None = None,
) -> Outcome:
    """Train a model as a recipe says and keep everything in a directory that is new or empty.

    The same recipe, data, machine and number of threads give the same weights, bit for bit.
    Raises SpecError for a wrong spec, InputError for data that cannot be used, StoreError for a directory that cannot be
    written, TrainingError where the loss is no number.
    """
    directory, catalogue = Path(directory), catalogue or load_catalogue()
    check_new(directory)
    if recipe.compile:
        check_compiler(torch.device(device))
    files_of(recipe)
    roles = roles_in(recipe, catalogue, backend)
    _check_validation(recipe)
    new = not directory.exists()
    try:
        return _begin(recipe, directory, torch.device(device), backend, watchers, catalogue, roles)
    except BaseException:
        # What a wrong input, or Ctrl-C during preparation, left behind would stand in the way of the next try.
        if not (directory / RECIPE).is_file() and directory.is_dir():
            for path in [directory] if new else list(directory.iterdir()):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        raise


def _begin(
    recipe: Recipe,
    directory: Path,
    device: torch.device,
    backend: Any,
    watchers: Sequence[Watcher],
    catalogue: Catalogue,
    roles: Roles,
) -> Outcome:
    data = prepare(recipe, directory / "data", _vocabulary(recipe))
    if data.validation is None and (recipe.stopping.patience is not None or recipe.validation.metric != "loss"):
        message = "`stopping.patience` and `validation.metric` need validation data, and there are none"
        fix = "name validation files, or write `data.held_out`; of fewer than 20 rows none is held out unasked"
        raise InputError(recipe.fault("TFK112", "data", message, fix))
    sizes = {column: each.size for column, each in data.tokenisers.items()}
    spec, changes = fitted_spec(recipe, catalogue, roles, sizes, len(data.labels))
    model = build(spec, catalogue, device=device, seed=recipe.seed, backend=backend)
    for name, text in tokeniser_texts(data.tokenisers).items():
        write_whole(directory / name, text)
    write_whole(directory / SPEC, to_yaml(spec))
    torch.manual_seed(recipe.seed)
    trainer = Trainer(model, recipe, data, roles, Progress())
    trainer.try_longest()
    keeper = Keeper(directory, trainer, digests(recipe, data, directory), catalogue, watchers)
    write_whole(directory / DIGESTS, json.dumps(keeper.digests, indent=1) + "\n")
    _write_recipe(recipe, directory)
    return _finish(keeper, changes)


def resume(
    directory: str | Path,
    *,
    device: str | torch.device = "cpu",
    backend: Any = None,
    overrides: Sequence[str] = (),
    earlier: bool = False,
    watchers: Sequence[Watcher] = (),
    catalogue: Catalogue | None = None,
) -> Outcome:
    """Go on with a run where its latest checkpoint stands, to the same weights as a run that was never stopped.

    `overrides` may change when to stop, how often to validate and what to keep, nothing that the weights depend on. A
    checkpoint that was cut off or altered is an error; `earlier` goes back to the one before it.
    """
    directory, catalogue = Path(directory), catalogue or load_catalogue()
    if not (directory / RECIPE).is_file():
        message = f"{directory} holds no run that could go on: there is no {RECIPE}"
        raise InputError(Fault("TFK111", message, "name the directory that `tfkit train -o` wrote"))
    before = load_recipe(directory / RECIPE)
    recipe = load_recipe(directory / RECIPE, overrides)
    _check_same(before, recipe)
    if recipe.compile:
        check_compiler(torch.device(device))
    columns = tuple(KINDS[recipe.data.kind].files)
    data = read_data(recipe, directory / "data", read_tokenisers(directory, columns))
    found = digests(before, data, directory)
    _check_digests(directory, found)
    spec = load_spec(directory / SPEC, catalogue)
    model = build(spec, catalogue, device=device, seed=recipe.seed, backend=backend)
    roles = roles_of(model.plan, recipe.data.kind)
    torch.manual_seed(recipe.seed)
    trainer = Trainer(model, recipe, data, roles, Progress())
    keeper = Keeper(directory, trainer, found, catalogue, watchers)
    keeper.restore(earlier)
    cut_log(directory / LOG, trainer.progress.step)
    sweep(directory)
    if overrides:
        _write_recipe(recipe, directory)
    return _finish(keeper, [])


def _finish(keeper: Keeper, changes: list[str]) -> Outcome:
    for watcher in keeper.watchers:
        watcher.began(keeper.trainer, changes)
    reason = keeper.run()
    return Outcome(reason, keeper.trainer.progress, keeper.best_model())


def digests(recipe: Recipe, data: Data, directory: Path) -> dict[str, str]:
    """What a checkpoint belongs to: the recipe (without what may change), the spec, the rows, the tokenisers."""
    files = {"spec": SPEC, "training data": f"data/{TRAIN}", "validation data": f"data/{VALIDATION}"}
    return {
        "recipe": hashlib.sha256(json.dumps(_fixed(recipe), sort_keys=True).encode()).hexdigest(),
        **{name: file_facts(directory / file)["sha256"] for name, file in files.items() if (directory / file).is_file()},
        **{f"tokeniser {column}": each.digest for column, each in data.tokenisers.items()},
    }


def _check_digests(directory: Path, found: Mapping[str, str]) -> None:
    """Raises StoreError where a run is not the one that began."""
    written = read_json(directory / DIGESTS)
    wrong = [name for name in {**written, **found} if written.get(name) != found.get(name)]
    if wrong:
        message = f"{directory} began with another {' and '.join(wrong)}"
        raise StoreError(Fault("TFK113", message, "go on with the files that the run began with"))


FREE = ("stopping", "keeping", "name", "description", "reference")
"""The keys of a recipe on which no weight and no score depends; of `validation`, `every_steps` is another."""


def _fixed(recipe: Recipe) -> Mapping[str, Any]:
    """What stays: files have digests of their own, and changes of the spec are in the spec."""
    written = {key: value for key, value in recipe.written().items() if key not in (*FREE, "model", "changes")}
    written["validation"] = {key: value for key, value in written["validation"].items() if key != "every_steps"}
    options = recipe.data.options.model_dump(exclude_none=True)
    kept = {key: value for key, value in options.items() if not isinstance(value, str) and key != "held_out"}
    return {**written, "data": {"kind": recipe.data.kind, **kept}}


def _check_same(before: Recipe, after: Recipe) -> None:
    old, new = _fixed(before), _fixed(after)
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        message = f"a run that goes on keeps its {', '.join(f'`{key}`' for key in changed)}"
        raise InputError(
            Fault("TFK111", message, "what may change: `stopping`, `keeping`, `validation.every_steps`; or begin a new run")
        )


def _vocabulary(recipe: Recipe) -> int:
    """The size of the vocabulary that the recipe wants, or the one for a corpus of this size."""
    wanted = getattr(recipe.tokeniser.options, "vocab_size", None)
    return int(wanted) if wanted is not None else chosen_for(count_rows(recipe)).vocab_size


def _check_validation(recipe: Recipe) -> None:
    metric, kind = recipe.validation.metric, recipe.data.kind
    known = {"parallel": ("loss", "bleu", "chrf"), "classification": ("loss", "accuracy")}.get(kind, ("loss",))
    if metric not in known:
        message = f"`{metric}` cannot be computed of data of kind `{kind}`"
        raise InputError(recipe.fault("TFK112", "validation.metric", message, f"write one of {', '.join(known)}"))


def _write_recipe(recipe: Recipe, directory: Path) -> None:
    """The recipe as it reads back from there: file names from anywhere."""
    written = recipe.written()
    written["model"] = SPEC
    data = {"kind": recipe.data.kind} | recipe.data.options.model_dump(exclude_none=True)
    written["data"] = {
        key: str(Path(value).absolute()) if isinstance(value, str) and key != "kind" else value for key, value in data.items()
    }
    written.pop("changes", None)
    write_whole(directory / RECIPE, yaml.safe_dump(written, sort_keys=False, allow_unicode=True))
