"""`tfkit compare`: several recipes, each trained with several seeds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import Diagnostic, StoreError
from ..view.terminal import shown
from .options import READ, WRITE, common, run_device_option, set_option, whole
from .output import check_place, print_json, print_rich, print_text, write_whole
from .packages import TEXT, need_packages

if TYPE_CHECKING:
    from ..comparison import RunResult

EPILOG = """\b
The first RECIPE is the one that the others are compared with. All need the
same validation data and the same metric. Runs use one thread each, as many at
once as there are cores. The same command resumes: finished runs in
--directory are not repeated, interrupted ones continue.

\b
Exit code 1: a run failed; the others were compared.
"""


@click.command("compare", epilog=EPILOG)
@click.argument("recipes", nargs=-1, required=True, metavar="RECIPE...", type=READ, help="Recipes with equal validation data.")
@click.option("--seeds", type=whole, metavar="N", default=5, help="Train with the seeds 0 to N-1.")
@click.option("--directory", metavar="DIR", type=WRITE, default="runs/compare", help="Where the runs are kept.")
@click.option("-o", "--output", metavar="FILE", type=WRITE, help="A page (.html) with scores and curves.")
@click.option("--force", is_flag=True, help="Replace a page that exists.")
@click.option("--workers", type=whole, metavar="N", help="Runs at once (default: one per core; on CUDA one).")
@run_device_option
@set_option
@common
def command(
    recipes: tuple[str, ...], seeds: int, directory: str, output: str | None, force: bool, workers: int | None, device: str,
    overrides: tuple[str, ...], as_json: bool,
) -> int:  # fmt: skip
    """Train recipes with several seeds and compare their scores.

    Prints mean and spread of the best validation score of each recipe, and its difference to the first one, paired by seed.
    """
    need_packages("train", *TEXT, "filelock", "sacrebleu")
    if output is not None:
        check_place(output)
        if os.path.lexists(output) and not force:
            raise StoreError(
                Diagnostic("TFK080", f"{output} exists already", "choose another file, or replace it with --force")
            )
    from ..comparison import Candidate, compare_recipes
    from ..view.comparison import comparison_data, comparison_page, comparison_table, notes
    from .device import chosen_device

    def report(name: str, seed: int, outcome: RunResult | str) -> None:
        text = (
            outcome if isinstance(outcome, str) else f"{outcome.score:.4g} at step {outcome.step:,} ({outcome.seconds:.0f} s)"
        )
        print(shown(f"{name}, seed {seed}: {text}"), file=sys.stderr, flush=True)

    candidates = [Candidate(recipe, overrides) for recipe in recipes]
    settings: dict[str, Any] = {"seeds": range(seeds), "workers": workers, "device": chosen_device(device)}
    compared = compare_recipes(candidates, directory, **settings, on_run_end=None if as_json else report)
    if output is not None:
        write_whole(output, comparison_page(compared, Path(output).stem))
    if as_json:
        print_json(comparison_data(compared))
    else:
        print_rich(comparison_table(compared))
        for sentence in notes(compared):
            print_text(shown(sentence))
    return int(any(candidate.failures for candidate in compared.candidates))
