"""`tfkit train`: from text to a model."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import StoreError, TfkitError
from ..view.terminal import shown
from .options import READ, WRITE, Declared, common, placement, set_option
from .output import print_diagnostics, print_json, print_text
from .packages import TEXT, import_torch, need_packages
from .usage import usage_error

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..train import Outcome

EPILOG = """\b
--from DIR copies every weight whose name and shape agree, and the tokenisers,
and reports what it did not copy. It refuses a model that gives less than half
of the weights; `--set pretrained_share=0.3` lowers the limit.

\b
`--set model.KEY=VALUE` changes the spec, every other --set the recipe. File
names on the command line are relative to the working directory.

\b
--processes N shares the batches of each step among N processes here; set
`batching.accumulate` to N or more. Over several machines:
`torchrun --nproc-per-node N --no-python tfkit train ...`.

\b
--json prints one JSON object per line, of kind start, step, reach,
validation, checkpoint, warning or end.
"""

DATA = {
    "source": "Sentences to translate, one per line; plain or .gz.",
    "target": "Their translations, line by line.",
    "text": "Running text, for a decoder-only model or masked training.",
    "table": "Texts and labels with a tab between them, for a classifier; or tagged words.",
    "questions": "Questions, contexts and answers: SQuAD's .json, JSON lines (.jsonl), or a table.",
    "images": "An idx file of images, or a folder with a sub-folder of images per label.",
    "labels": "The idx file of their labels.",
    "validation-source": "As --source, to choose the best model.",
    "validation-target": "As --target.",
    "validation-text": "As --text.",
    "validation-table": "As --table.",
    "validation-questions": "As --questions.",
    "validation-images": "As --images.",
    "validation-labels": "As --labels.",
}

TEXT_KINDS = {
    "table": ("tagged", "classification"),
    "questions": ("spans",),
    "text": ("language", "masked_pairs", "masked"),
}
"""The kinds of data that an option may name; the first that fits the model of a SPEC is chosen."""


def _data_options(command: Declared) -> Declared:
    for name, words in reversed(DATA.items()):
        command = click.option(f"--{name}", metavar="FILE", type=READ, help=words)(command)
    return command


@click.command("train", epilog=EPILOG)
@click.argument("recipe", required=False, metavar="[RECIPE|SPEC]", type=READ, help="A recipe, or the spec of a model.")
@_data_options
@click.option("--from", "start", metavar="DIR", type=READ, help="Start from the weights of this model or run.")
@click.option("-o", "--output", metavar="DIR", type=WRITE, help="A new directory for the run.")
@click.option("--resume", metavar="DIR", type=READ, help="Continue the run in this directory.")
@click.option("--find-rate", is_flag=True, help="Train nothing: sweep learning rates, draw the losses, suggest one.")
@click.option("--earlier", is_flag=True, help="With --resume: skip a damaged checkpoint.")
@click.option("--processes", metavar="N", type=click.IntRange(1, 1024), default=1, help="Train in N processes, here.")
@click.option("--fsdp", is_flag=True, help="With several processes: shard weights, gradients and moments (FSDP2).")
@placement
@set_option
@common
def command(
    recipe: str | None, start: str | None, output: str | None, resume: str | None, find_rate: bool, earlier: bool,
    processes: int, fsdp: bool, device: str,
    backend: list[str] | None, auto_table: str | None, overrides: tuple[str, ...], as_json: bool, **data: str | None,
) -> int:  # fmt: skip
    """Train a model from text, or resume a run.

    A RECIPE holds all settings (`tfkit specs` lists examples). For a SPEC, tfkit chooses the settings by the size of the
    corpus and prints them. --resume continues a run that was stopped or killed.
    """
    since = time.monotonic()
    need_packages("train", *TEXT, "filelock", "sacrebleu")
    if recipe is None and resume is None:
        raise usage_error("a RECIPE, a SPEC or --resume is needed", "see `tfkit train --help`")
    if recipe is not None and resume is not None:
        raise usage_error(f"`{recipe}` and --resume exclude each other", "a run has a recipe: leave yours out")
    option_changes = [f"data.{name}={_quoted(value)}" for name, value in data.items() if value]
    option_changes += [f"pretrained={_quoted(start)}"] if start else []
    if resume is not None and (option_changes or output is not None):
        raise usage_error("a resumed run keeps its data, its start and its directory", "leave the other options out")
    if resume is None and output is None:
        raise usage_error("-o is missing", "name a new directory for the run")
    if resume is None and earlier:
        raise usage_error("--earlier belongs to --resume")
    if find_rate and (resume is not None or processes > 1 or fsdp):
        raise usage_error("--find-rate starts a run of its own, in one process", "leave the other options out")
    if processes > 1:
        code = _in_processes(processes)
        if code is not None:
            return code
    chosen = None if recipe is None else _recipe_of_all_ranks(recipe, overrides, option_changes, data, start)
    import_torch()
    from ..train import resume as run_again, train
    from .callbacks import command_callbacks
    from .device import placed

    if find_rate:
        assert chosen is not None, "it starts a run"
        return _find_rate(chosen, Path(str(output)), placed(device, backend, auto_table), as_json)
    where, directory = placed(device, backend, auto_table), Path(str(output or resume))
    with interruptible(directory), command_callbacks(directory, as_json) as callbacks:
        settings: dict[str, Any] = {"fsdp": fsdp, "callbacks": callbacks, "since": since, **where}
        if chosen is None:
            outcome = run_again(directory, overrides=overrides, earlier=earlier, **settings)
        else:
            outcome = train(chosen, directory, **settings)
    return _ended(outcome, directory, as_json)


def _find_rate(recipe: Recipe, directory: Path, where: Mapping[str, Any], as_json: bool) -> int:
    """Sweep learning rates, write the page and the numbers into a new directory, and print the suggestion."""
    from ..files import make_folders, write_whole
    from ..train import find_rate as sweep_rates
    from ..train.rate_finder import peak_setting
    from ..train.run_directory import check_new
    from ..view.rate_curve import sweep_json, sweep_page, sweep_text

    check_new(directory)
    sweep, width = sweep_rates(recipe, **where)
    make_folders(directory)
    write_whole(directory / "rate.html", sweep_page(sweep, f"learning rates of {recipe.name}"))
    write_whole(directory / "rate.json", sweep_json(sweep))
    if as_json:
        print_json(json.loads(sweep_json(sweep)))
        return 0
    rows = [sweep_text(sweep)]
    if sweep.suggestion is not None:
        rows.append(f"to train with it: --set {peak_setting(recipe, sweep.suggestion, width)}")
    rows.append(f"curve: {directory}/rate.html")
    print_text("\n".join(map(shown, rows)))
    return 0


def _in_processes(count: int) -> int | None:
    """The exit code in the process that waits; None in those that train."""
    if "RANK" in os.environ:
        raise usage_error("--processes under torchrun", "leave one of them out: both start processes")
    if not hasattr(os, "fork"):
        raise usage_error("--processes needs a system that can copy a process", "use torchrun")
    from .local_processes import start_processes

    return start_processes(count)


def _quoted(name: str) -> str:
    """A file name in the form of `--set`, quoted so that names such as `-`, `7` or `[a]` stay names."""
    return json.dumps(name, ensure_ascii=False, allow_nan=False)


@contextmanager
def interruptible(directory: Path) -> Iterator[None]:
    """A context that on Ctrl-C draws the curve so far and prints how to resume the run."""
    from ..train import started_rank

    try:
        yield
    except KeyboardInterrupt:
        if started_rank() == 0 and (directory / "recipe.yaml").is_file():
            from ..view.terminal import shown

            _draw(directory, False)
            print(shown(f"stopped; `tfkit train --resume {directory}` continues"), file=sys.stderr)
        raise


def _recipe_of_all_ranks(
    file: str, overrides: Sequence[str], option_changes: list[str], data: Mapping[str, str | None], start: str | None
) -> Recipe:
    """The recipe. All ranks read the same file, and only rank 0 reports an error."""
    try:
        return _recipe(file, overrides, option_changes, data, start)
    except TfkitError as error:
        from ..train import started_rank

        error.reported_by_other_rank = started_rank() > 0
        raise


def _recipe(
    file: str, overrides: Sequence[str], option_changes: list[str], data: Mapping[str, str | None], start: str | None
) -> Recipe:
    """The recipe in the file, or one for the spec in it and a corpus of this size."""
    from ..recipe import describes_model, recipe_of, recipe_text
    from ..spec.located import Diagnostics
    from ..spec.published import file_named
    from ..spec.reader import read_source

    file = file_named(file, "recipe", "spec")
    changes = [*overrides, *option_changes]  # the kind of data is set before its files
    text = read_source(file, Diagnostics())  # once: it may come through a pipe
    if not describes_model(text, file):
        return recipe_of(text, file, changes)
    if data["images"]:
        raise usage_error(
            "images need a RECIPE, and a SPEC is given", "name the spec in a copy: tfkit new recipe vit-mnist -o my.yaml"
        )
    from ..catalogue import load_catalogue
    from ..data import count_rows
    from ..train.fit_spec import fitting_kind

    if start:
        changes = ["tokeniser=null", *changes]  # the run uses that of the pretrained model
    kinds = next((kinds for name, kinds in TEXT_KINDS.items() if data[name]), ("parallel",))

    def chosen(kind: str, rows: int) -> Recipe:
        return recipe_of(recipe_text(Path(file).stem, file, kind, rows), "<chosen>", changes)

    kind = kinds[0] if len(kinds) == 1 else fitting_kind(chosen(kinds[-1], 1), load_catalogue(), kinds)
    return chosen(kind, count_rows(chosen(kind, 1)))


def _ended(outcome: Outcome, directory: Path, as_json: bool) -> int:
    from ..train import started_rank
    from ..view.training import end_text

    if started_rank():
        return 0
    code = _draw(directory, as_json)
    if not as_json:
        print_text(end_text(outcome, directory))
    return code


def _draw(directory: Path, as_json: bool) -> int:
    """Draw the curve, or print the error. The exit code is 1 if the directory cannot be written; a damaged log does not affect
    the model and gives 0."""
    from ..view.curve import draw_curve

    try:
        draw_curve(directory / "log.jsonl", directory / "curve.html", directory.name)
    except StoreError as error:
        print_diagnostics(error.diagnostics, as_json)
        return int(any(diagnostic.code == "TFK081" for diagnostic in error.diagnostics))
    return 0
