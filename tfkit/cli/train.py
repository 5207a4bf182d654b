"""`tfkit train`: from text to a model."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError, TfkitError
from .arguments import Parser, add_common, add_placing, add_set, place, reading, usage_error
from .output import print_diagnostics, print_text
from .packages import TEXT, need_packages

if TYPE_CHECKING:
    from ..recipe import Recipe
    from ..train import Outcome

EPILOG = """\
RECIPE says everything (`specs/recipes/` holds some); a SPEC is trained by a
recipe whose settings are chosen by the size of the corpus and printed.
`--from DIR` begins with the weights and the tokenisers of another model, as far
as its parts have the same names and shapes, and prints what has not. Less than
half of the weights is refused unless `--set pretrained_share=0.3` says so.
File names on the command line are relative to the working directory.
`--resume DIR` goes on with a run that was stopped or killed.
`--set model.KEY=VALUE` changes the spec, every other --set the recipe.
`torchrun --nproc-per-node N --no-python tfkit train ...` shares the batches of
every step among N processes: write `batching.accumulate`, N or more.
--json prints one JSON object a line: began, step, validation, saved, ended."""

DATA = {
    "source": "sentences to translate, one a line; plain or .gz",
    "target": "their translations, line by line",
    "text": "running text, for a decoder-only model",
    "table": "texts and labels with a tab between them, for a classifier",
    "validation-source": "as --source, to choose the best model by",
    "validation-target": "as --target",
    "validation-text": "as --text",
    "validation-table": "as --table",
}


def arguments(parser: Parser) -> None:
    parser.add_argument("recipe", metavar="RECIPE|SPEC", nargs="?", type=reading, help="a recipe, or the spec of a model")
    for name, words in DATA.items():
        parser.add_argument(f"--{name}", metavar="FILE", type=reading, help=words)
    parser.add_argument("--from", dest="start", metavar="DIR", type=reading, help="start from the weights of this model or run")
    parser.add_argument("-o", "--output", metavar="DIR", type=place, help="a new directory for the run")
    parser.add_argument("--resume", metavar="DIR", type=reading, help="go on with the run in this directory")
    parser.add_argument("--earlier", action="store_true", help="with --resume: pass over a damaged checkpoint")
    parser.add_argument("--fsdp", action="store_true", help="under torchrun: shard weights, gradients and moments (FSDP2)")
    add_placing(parser)
    add_set(parser)
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    since = time.monotonic()
    need_packages("train", *TEXT, "filelock", "sacrebleu")
    if (options.recipe is None) == (options.resume is None):
        raise usage_error("a RECIPE, a SPEC or --resume is needed, one of them", "`tfkit train --help` tells more")
    files = {name.replace("-", "_"): getattr(options, name.replace("-", "_")) for name in DATA}
    given = [f"data.{name}={_quoted(value)}" for name, value in files.items() if value]
    given += [f"pretrained={_quoted(options.start)}"] if options.start else []
    if options.resume is not None:
        if given or options.output is not None:
            raise usage_error("a run that goes on keeps its data, its start and its directory", "leave the other options out")
        return _resume(options, since)
    if options.output is None:
        raise usage_error("-o is missing", "name a new directory for the run")
    if options.earlier:
        raise usage_error("--earlier belongs to --resume")
    try:
        recipe = _recipe(options, given)
    except TfkitError as error:
        from ..train import started_rank

        error.reported_by_other_rank = started_rank() > 0  # all read the same
        raise
    from ..train import train
    from .callbacks import watching
    from .device import placed

    where, directory = placed(options), Path(options.output)
    with interruptible(directory), watching(directory, options.json) as callbacks:
        outcome = train(recipe, directory, fsdp=options.fsdp, callbacks=callbacks, since=since, **where)
    return _ended(outcome, directory, options.json)


def _quoted(name: str) -> str:
    """A file name as `--set` reads it: a name such as `-`, `7` or `[a]` is a name."""
    return json.dumps(name, ensure_ascii=False)


@contextmanager
def interruptible(directory: Path) -> Iterator[None]:
    """Ctrl-C says how to go on, and draws the curve so far."""
    from ..train import started_rank

    try:
        yield
    except KeyboardInterrupt:
        if started_rank() == 0 and (directory / "recipe.yaml").is_file():
            from ..view.terminal import shown

            _draw(directory, False)
            print(shown(f"stopped; `tfkit train --resume {directory}` goes on"), file=sys.stderr)
        raise


def _resume(options: argparse.Namespace, since: float) -> int:
    from ..train import resume
    from .callbacks import watching
    from .device import placed

    where, directory = placed(options), Path(options.resume)
    with interruptible(directory), watching(directory, options.json) as callbacks:
        outcome = resume(
            directory,
            fsdp=options.fsdp,
            overrides=options.overrides,
            earlier=options.earlier,
            callbacks=callbacks,
            since=since,
            **where,
        )
    return _ended(outcome, directory, options.json)


def _recipe(options: argparse.Namespace, given: list[str]) -> Recipe:
    """The recipe in the file, or one for the spec in it and a corpus of this size."""
    from ..recipe import describes_model, recipe_of, recipe_text
    from ..spec.located import Diagnostics
    from ..spec.reader import read_source

    overrides = [*options.overrides, *given]  # another kind of data is chosen before its files
    text = read_source(options.recipe, Diagnostics())  # once: it may come through a pipe
    if not describes_model(text, options.recipe):
        return recipe_of(text, options.recipe, overrides)
    from ..data import count_rows

    if options.start:
        overrides = ["tokeniser=null", *overrides]  # the one of that model is taken
    kind = "classification" if options.table else "language" if options.text else "parallel"

    def chosen(rows: int) -> Recipe:
        return recipe_of(recipe_text(Path(options.recipe).stem, options.recipe, kind, rows), "<chosen>", overrides)

    return chosen(count_rows(chosen(1)))


def _ended(outcome: Outcome, directory: Path, as_json: bool) -> int:
    from ..train import started_rank
    from ..view.training import ended_text

    if started_rank():
        return 0
    code = _draw(directory, as_json)
    if not as_json:
        print_text(ended_text(outcome, directory))
    return code


def _draw(directory: Path, as_json: bool) -> int:
    """Draw the curve; what keeps it from being drawn is printed. The exit code: a log that was altered meanwhile takes nothing
    from the model, a directory that cannot be written does."""
    from ..view.curve import draw_curve

    try:
        draw_curve(directory / "log.jsonl", directory / "curve.html", directory.name)
    except StoreError as error:
        print_diagnostics(error.diagnostics, as_json)
        return int(any(diagnostic.code == "TFK081" for diagnostic in error.diagnostics))
    return 0
