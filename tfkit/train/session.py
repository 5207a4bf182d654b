"""One run of training, from text to a model: prepare the data, build, train, validate, keep.

recipe = tfkit.load_recipe("specs/recipes/translate-small.yaml", ["data.source=train.en", "data.target=train.de"])
tfkit.train(recipe, "runs/en-de")
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
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
    TextTokeniser,
    count_rows,
    files_of,
    prepare,
    read_data,
    read_tokenisers,
    roles_of,
    tokeniser_texts,
)
from ..errors import Diagnostic, InputError, Location, StoreError
from ..files import file_record, write_whole
from ..nn.model import Model
from ..recipe import Recipe, check_metric, chosen_for, load_recipe
from ..spec import ModelSpec, load_spec, to_yaml
from .callbacks import Callback, Progress
from .checkpoint import checkpoints_in
from .compiled import check_compiler
from .distributed.process_group import ProcessGroup, joined
from .fit_spec import fitted_length, fitted_spec, positions_in, roles_in
from .log import cut_log
from .loop import TrainingLoop
from .pretrained import Pretrained, check_tokenisers, digest_of, read_digests, read_pretrained
from .run_directory import DIGESTS, LOG, RECIPE, SPEC, check_new, new_run, old_run, own_place, prepared
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
    fsdp: bool = False,
    callbacks: Sequence[Callback] = (),
    catalogue: Catalogue | None = None,
    since: float | None = None,
) -> Outcome:
    """Train a model as a recipe says and keep everything in a directory that is new or empty.

    The same recipe, data, machine and number of threads give the same weights, bit for bit. Where torchrun started this process
    with others, they share the batches of every step, and with `fsdp` the weights too; they need one file system.
    `since` is the `time.monotonic()` from which `stopping.max_minutes` counts, this call unless given.
    Raises SpecError for a wrong spec, InputError for data that cannot be used, StoreError for a directory that cannot be
    written, TrainingError where the loss is no number, or another process is gone.
    """
    since = time.monotonic() if since is None else since
    directory, catalogue = own_place(directory), catalogue or load_catalogue()
    with joined(device) as (processes, place), processes.reporting_once():
        processes.first(lambda: _check_start(recipe, directory, processes.count, fsdp))
        if recipe.compile:
            processes.each(lambda: check_compiler(place))
        positions = processes.first(lambda: positions_in(recipe, catalogue, backend))
        recipe = fitted_length(recipe, positions)
        with ExitStack() as stack:
            processes.first(lambda: stack.enter_context(new_run(directory)))
            changes, found = processes.first(lambda: _lay_out(recipe, directory, catalogue, backend, positions), patiently=True)
            loop = _open(recipe, directory, found, place, backend, callbacks, catalogue, processes, fsdp, since)
            processes.each(loop.trainer.try_longest)
            processes.first(lambda: _end_preparation(recipe, directory))
            return _finish(loop, changes)


def _check_start(recipe: Recipe, directory: Path, count: int, fsdp: bool) -> None:
    """Raises StoreError for a directory that holds something, InputError for what cannot begin."""
    check_new(directory)
    files_of(recipe)
    check_metric(recipe)
    _check_processes(recipe, count, fsdp)


def _lay_out(
    recipe: Recipe, directory: Path, catalogue: Catalogue, backend: Any, positions: Mapping[str, int]
) -> tuple[list[str], dict[str, str]]:
    """Prepare the data and write all that a run begins with, but the recipe; gives the changes of the spec, and the digests."""
    roles = roles_in(recipe, catalogue, backend)
    pretrained = read_pretrained(recipe, roles, catalogue)
    if pretrained is not None:
        check_tokenisers(recipe, pretrained)
        if not KINDS[recipe.data.kind].labelled:  # the rest is known before the data are: told now, and not after hours
            spec, _ = fitted_spec(recipe, catalogue, roles, _sizes(pretrained.tokenisers), 0)
            pretrained.give(build(spec, catalogue, device="meta"), recipe, roles, ())
    given = None if pretrained is None else pretrained.tokenisers
    data = prepare(recipe, directory / "data", _vocabulary(recipe) if given is None else 0, given, positions)
    if data.validation is None and (recipe.stopping.patience is not None or recipe.validation.metric != "loss"):
        message = "`stopping.patience` and `validation.metric` need validation data, and there are none"
        fix = "name validation files, or write `data.held_out`; of fewer than 20 rows none is held out unasked"
        raise InputError(recipe.diagnostic("TFK112", "data", message, fix))
    spec, changes = fitted_spec(recipe, catalogue, roles, _sizes(data.tokenisers), len(data.labels))
    for name, text in tokeniser_texts(data.tokenisers).items():
        write_whole(directory / name, text)
    write_whole(directory / SPEC, to_yaml(spec))
    found = digests(recipe, data, _file_digests(directory)) | digest_of(pretrained, directory)
    write_whole(directory / DIGESTS, json.dumps(found, indent=1) + "\n")
    return changes, found


def _sizes(tokenisers: Mapping[str, TextTokeniser]) -> dict[str, int]:
    return {column: each.size for column, each in tokenisers.items()}


def _open(
    recipe: Recipe,
    directory: Path,
    found: Mapping[str, str] | None,
    device: torch.device,
    backend: Any,
    callbacks: Sequence[Callback],
    catalogue: Catalogue,
    processes: ProcessGroup,
    fsdp: bool,
    since: float,
) -> TrainingLoop:
    """A run as it was laid out, at its beginning; where the digests that were `found` are not given, they are compared with
    those that were written."""
    seen = processes.gathered((directory / DIGESTS).is_file())
    if not all(seen):
        message = f"process {seen.index(False)} does not see the directory {directory} that process 0 has written"
        error = InputError(Diagnostic("TFK118", message, "use a file system that all processes share"))
        error.reported_by_other_rank = not processes.is_first
        raise error

    def another(spec: ModelSpec) -> Model:
        return build(spec, catalogue, device=device, seed=recipe.seed, backend=backend)

    def read() -> tuple[Data, ModelSpec, Model, Roles, Pretrained | None]:
        data = read_data(recipe, directory / "data", read_tokenisers(directory, tuple(KINDS[recipe.data.kind].files)))
        spec = load_spec(directory / SPEC, catalogue)
        model = another(spec)
        roles = roles_of(model.plan, recipe.data.kind)
        # From the first step, and so from the weights of the other model.
        begins = not checkpoints_in(directory / "checkpoints")
        return data, spec, model, roles, read_pretrained(recipe, roles, catalogue) if begins else None

    files = {} if found else processes.first(lambda: _checked_files(directory))
    data, spec, model, roles, pretrained = processes.each(read)
    if not found:
        found = digests(recipe, data, files) | processes.each(lambda: digest_of(pretrained, directory))
        processes.each(lambda: _check_digests(directory, read_digests(directory), found))
    taken = None if pretrained is None else processes.each(lambda: pretrained.give(model, recipe, roles, data.labels))
    trainer = Trainer(model, partial(another, spec), recipe, data, processes, fsdp)
    trainer.taken = taken
    return TrainingLoop(directory, trainer, found, catalogue, callbacks, since)


def resume(
    directory: str | Path,
    *,
    device: str | torch.device = "cpu",
    backend: Any = None,
    fsdp: bool = False,
    overrides: Sequence[str] = (),
    earlier: bool = False,
    callbacks: Sequence[Callback] = (),
    catalogue: Catalogue | None = None,
    since: float | None = None,
) -> Outcome:
    """Go on with a run where its latest checkpoint stands, to the same weights as a run that was never stopped.

    `overrides` may change when to stop, how often to validate and what to keep, nothing that the weights depend on. A
    checkpoint that was cut off or altered is an error; `earlier` goes back to the one before it. The number of processes and
    `fsdp` may be others than before: the steps stay the same but for the order in which they are summed up. `since` as in
    `train`.
    """
    since = time.monotonic() if since is None else since
    directory, catalogue = own_place(directory), catalogue or load_catalogue()
    with joined(device) as (processes, place), processes.reporting_once(), ExitStack() as stack:
        processes.first(lambda: stack.enter_context(old_run(directory)))
        recipe = processes.first(lambda: _read_recipe(directory, overrides, processes.count, fsdp))
        if recipe.compile:
            processes.each(lambda: check_compiler(place))
        loop = _open(recipe, directory, None, place, backend, callbacks, catalogue, processes, fsdp, since)
        loop.restore(earlier)
        processes.first(lambda: cut_log(directory / LOG, loop.progress.step))
        if overrides:
            processes.first(lambda: _write_recipe(recipe, directory))
        return _finish(loop, [])


def _read_recipe(directory: Path, overrides: Sequence[str], count: int, fsdp: bool) -> Recipe:
    """The recipe of a run that goes on. Raises InputError where what must stay is changed."""
    _check_overrides(overrides)
    recipe = load_recipe(directory / RECIPE, overrides)
    _check_same(load_recipe(directory / RECIPE), recipe)
    _check_processes(recipe, count, fsdp)
    return recipe


def _check_processes(recipe: Recipe, count: int, fsdp: bool) -> None:
    """Raises InputError where some of the processes would have nothing to do."""
    batches, tokens = recipe.batching.accumulate, recipe.batching.tokens
    if batches < count:
        message = f"a step takes {batches} {'batch' if batches == 1 else 'batches'}, which {count} processes cannot share"
        fix = (
            f"`--set batching.accumulate={count}` gives each a batch in every step; with `--set batching.tokens="
            f"{tokens * batches // count}` too, steps stay as large as they are"
        )
        raise InputError(recipe.diagnostic("TFK118", "batching.accumulate", message, fix))
    if fsdp and recipe.compile:
        message = "what FSDP2 collects layer by layer is not compiled"
        raise InputError(recipe.diagnostic("TFK118", "compile", message, "leave out `compile`, or `--fsdp`"))
    if fsdp and count == 1:
        message = "one process has no others over which weights could be sharded"
        raise InputError(
            Diagnostic("TFK118", message, "start several: `torchrun --nproc-per-node 2 --no-python tfkit train ... --fsdp`")
        )


def _finish(loop: TrainingLoop, changes: list[str]) -> Outcome:
    loop.measure()
    for callback in loop.callbacks:
        callback.began(loop.trainer, changes)
    reason = loop.run()
    return Outcome(reason, loop.trainer.progress, loop.best_model())


FILE_DIGESTS = {"spec": SPEC, "training data": f"data/{TRAIN}", "validation data": f"data/{VALIDATION}"}
"""The files of a run that have a digest, by its name."""


def digests(recipe: Recipe, data: Data, files: Mapping[str, str]) -> dict[str, str]:
    """What a checkpoint belongs to: the recipe (without what may change), the spec, the rows, the tokenisers."""
    return {
        "recipe": hashlib.sha256(json.dumps(_fixed(recipe), sort_keys=True).encode()).hexdigest(),
        **files,
        **{f"tokeniser {column}": each.digest for column, each in data.tokenisers.items()},
    }


def _file_digests(directory: Path, written: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The digests of the spec and the corpora of a run: `SIZE:SHA-256`. A file of another size than what was `written` says is
    not read, since it may be without end."""
    there = {name: directory / file for name, file in FILE_DIGESTS.items() if (directory / file).is_file()}
    found = {}
    try:
        for name, path in there.items():
            size = f"{path.stat().st_size}:"
            same = name not in written or written[name].startswith(size)
            found[name] = size + (file_record(path)["sha256"] if same else "")
        return found
    except OSError as reason:
        raise StoreError(Diagnostic("TFK082", f"{reason.filename} cannot be read: {reason.strerror}")) from None


def _checked_files(directory: Path) -> dict[str, str]:
    """The digests of the files of a run, before anything is read in them. Raises StoreError where the run did not begin with
    them."""
    written = read_digests(directory)
    found = _file_digests(directory, written)
    missing = [directory / file for name, file in FILE_DIGESTS.items() if name in written and name not in found]
    if missing:
        raise StoreError([Diagnostic("TFK082", f"{path} is missing", "put it back, or begin a new run") for path in missing])
    _check_digests(directory, {name: digest for name, digest in written.items() if name in FILE_DIGESTS}, found)
    return found


def _check_digests(directory: Path, written: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raises StoreError where a run is not the one that began."""
    wrong = [name for name in {**written, **found} if written.get(name) != found.get(name)]
    if wrong:
        message = f"{directory} began with another {' and '.join(wrong)}"
        raise StoreError(Diagnostic("TFK113", message, "go on with the files that the run began with"))


FREE = ("stopping", "keeping", "name", "description", "reference")
"""The keys of a recipe on which no weight and no score depends; of `validation`, `every_steps` is another."""


MAY_CHANGE = "what may change: `stopping`, `keeping`, `validation.every_steps`, `name`; or begin a new run"

PLACES = ("model", "changes", "pretrained")
"""The keys that name what has a digest of its own."""


def _fixed(recipe: Recipe) -> Mapping[str, Any]:
    """What stays: files and weights have digests of their own, and changes of the spec are in the spec."""
    written = {key: value for key, value in recipe.written().items() if key not in (*FREE, *PLACES)}
    written["validation"] = {key: value for key, value in written["validation"].items() if key != "every_steps"}
    options = recipe.data.options.model_dump(exclude_none=True)
    kept = {key: value for key, value in options.items() if not isinstance(value, str) and key != "held_out"}
    return {**written, "data": {"kind": recipe.data.kind, **kept}}


KEPT = {
    "model": f"the spec of a run is its {SPEC}, and the weights belong to it",
    "data": "the data were read when the run began",
    "tokeniser": "the tokenisers were made when the run began",
    "pretrained": "the weights were taken over when the run began",
    "pretrained_share": "the weights were taken over when the run began",
}
"""Why these keys of a recipe have no effect on a run that goes on; the weights or the scores depend on the others."""


def _check_overrides(overrides: Sequence[str]) -> None:
    """Raises InputError for overrides that have no effect on a run that goes on."""
    diagnostics = []
    for override in overrides:
        key = override.partition("=")[0].strip()
        top = key.partition(".")[0]
        if top not in FREE and key not in ("validation", "validation.every_steps"):
            why = KEPT.get(top, "the weights or the scores depend on it")
            message = f"a run that goes on keeps its `{top}`: {why}"
            diagnostics.append(Diagnostic("TFK111", message, MAY_CHANGE, location=Location(f"--set {override}")))
    if diagnostics:
        raise InputError(diagnostics)


def _check_same(before: Recipe, after: Recipe) -> None:
    old, new = ({**_fixed(recipe), "pretrained": recipe.pretrained} for recipe in (before, after))
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        message = f"a run that goes on keeps its {', '.join(f'`{key}`' for key in changed)}"
        raise InputError(Diagnostic("TFK111", message, MAY_CHANGE))


def _vocabulary(recipe: Recipe) -> int:
    """The size of the vocabulary that the recipe wants, or the one for a corpus of this size."""
    wanted = getattr(recipe.tokeniser.options, "vocab_size", None)
    return int(wanted) if wanted is not None else chosen_for(count_rows(recipe)).vocab_size


def _end_preparation(recipe: Recipe, directory: Path) -> None:
    _write_recipe(recipe, directory)
    prepared(directory)


def _write_recipe(recipe: Recipe, directory: Path) -> None:
    """The recipe as it reads back from there: file names from anywhere."""
    written = recipe.written()
    written["model"] = SPEC
    data = {"kind": recipe.data.kind} | recipe.data.options.model_dump(exclude_none=True)
    written["data"] = {
        key: str(Path(value).absolute()) if isinstance(value, str) and key != "kind" else value for key, value in data.items()
    }
    written.pop("changes", None)
    if recipe.pretrained is not None:
        written["pretrained"] = str(Path(recipe.pretrained).absolute())
        # Its tokenisers are taken, of which what nobody wrote says nothing.
        del written["tokeniser"]
        if wrote := recipe.wrote("tokeniser"):
            written["tokeniser"] = {"kind": recipe.tokeniser.kind, **wrote}
    write_whole(directory / RECIPE, yaml.safe_dump(written, sort_keys=False, allow_unicode=True))
