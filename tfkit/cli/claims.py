"""`tfkit claims`: what papers and tutorials claim about Transformers, measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from ..claims import CLAIMS, claim_of, stored
from ..view.terminal import shown
from .drawing_args import form_of
from .options import READ, WRITE, OneOf, common, whole
from .output import print_json, print_rich, print_text, write_whole
from .packages import TEXT, import_torch, need_packages
from .usage import usage_error

if TYPE_CHECKING:
    from ..claims.claim import Data, Measured
    from ..claims.trained import Trained

FORMS = ("html", "svg", "png", "json")
SEEDS = 3
EPILOG = """\b
Without NAME: every claim, with the verdict that follows from the stored data.
With NAME: measures it, which takes seconds to hours; --stored does not, and
shows the stored data. Times depend on the machine: compare them within a run.

\b
tfkit claims token_order
tfkit claims quality_by_length --stored -o page.html
tfkit claims ablations --directory runs/ablations -o ablations.json

\b
Trained claims use one thread for a run, as many runs at once as there are
cores; with --directory the same command resumes. --tiny takes sizes that only
show that the command runs, and gives no verdict. quality_ko_en is on text of
yours: --text DIR with train.ko.gz, train.en.gz, test.ko.gz and test.en.gz.

\b
--json prints `name`, `claim`, `about`, `verdict` (null with --tiny) and
`data`; without NAME a list `claims` of these without data. -o FILE.json
writes the data.
Exit code 1: a run failed.
"""


@click.command("claims", epilog=EPILOG)
@click.argument("name", type=OneOf("claim", tuple(CLAIMS)), required=False, metavar="[NAME]", help="A claim; none: list them.")
@click.option("--stored", "of_record", is_flag=True, help="Show the stored data; nothing is measured.")
@click.option("--seeds", type=whole, metavar="N", help=f"Measure with the seeds 0 to N-1 (default: {SEEDS}).")
@click.option("--tiny", is_flag=True, help="Sizes that only show that the command runs.")
@click.option("--directory", metavar="DIR", type=WRITE, help="Keep the runs of a trained claim here, and resume them.")
@click.option("--workers", type=whole, metavar="N", help="Runs at once (default: one per core).")
@click.option("--text", "corpus", metavar="DIR", type=READ, help="The text of a claim on real text.")
@click.option("-o", "--output", metavar="FILE", type=WRITE, help="A page (.html), a picture (.svg, .png) or the data (.json).")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@common
def command(
    name: str | None, of_record: bool, seeds: int | None, tiny: bool, directory: str | None, workers: int | None,
    corpus: str | None, output: str | None, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """List the claims of papers and tutorials about Transformers, or measure one."""
    measuring = {"--seeds": seeds, "--tiny": tiny, "--directory": directory, "--workers": workers, "--text": corpus}
    used = [option for option, value in measuring.items() if value]
    if name is None:
        alone = [*used, *(["--stored"] if of_record else []), *(["-o"] if output else [])]
        if alone:
            raise usage_error(f"{alone[0]} belongs to one claim", "name it: `tfkit claims` lists them")
        _list(as_json)
        return 0
    if of_record and used:
        raise usage_error(f"{used[0]} is for measuring, and --stored measures nothing", "leave out one of them")
    claim = claim_of(name)
    form = form_of(None, output, force, FORMS)
    if form == "svg":
        need_packages("pictures", "matplotlib")
    data = stored(name) if of_record else None
    if of_record and data is None:
        raise usage_error(f"{name} has no stored data", f"measure it: tfkit claims {name}")
    if data is None:
        data = _measured(name, claim, directory, corpus, seeds or SEEDS, tiny, workers)
    return _report(name, claim, data, tiny, output, form, as_json)


def _list(as_json: bool) -> None:
    listed = []
    for name in CLAIMS:
        claim, data = claim_of(name), stored(name)
        verdict = claim.verdict(data) if data else None
        listed.append({"name": name, "claim": claim.sentence, "about": claim.about, "verdict": verdict})
    if as_json:
        print_json({"claims": listed})
        return
    for item in listed:
        print_text(fill(f"{item['name']}: {item['claim']}.", 110, subsequent_indent="  ", break_on_hyphens=False))
        verdict = item["verdict"] or "not run"
        print_text(fill(verdict, 110, initial_indent="    -> ", subsequent_indent="    ", break_on_hyphens=False))


def _measured(
    name: str, claim: Measured | Trained, directory: str | None, text: str | None, seeds: int, tiny: bool, workers: int | None
) -> Data:
    """Check what the claim needs, say how long it takes, and measure."""
    from ..claims.claim import Measured, Request

    trains = not isinstance(claim, Measured)
    if not trains and (directory or workers):
        raise usage_error(f"{name} trains no recipes: it has no --directory and no --workers", "leave them out")
    if isinstance(claim, Measured) or not claim.text:
        if text:
            raise usage_error(f"{name} makes its own data", "leave out --text")
    elif text is None:
        files = "train.ko.gz, train.en.gz, test.ko.gz and test.en.gz, one sentence per line"
        raise usage_error(f"{name} is on text that does not come with tfkit", f"--text DIR with {files}")
    if trains:
        need_packages("train", *TEXT, "filelock", "sacrebleu")
    import_torch()
    from ..comparison.runner import MOST_SEEDS

    if seeds > MOST_SEEDS:
        raise usage_error(f"{seeds:,} seeds are more than the {MOST_SEEDS:,} of a comparison", "--seeds N with a smaller N")

    def report(line: str) -> None:
        print(shown(line), file=sys.stderr, flush=True)

    report(f"{name}: {f'{seeds} seeds, tiny sizes' if tiny else claim.needs(seeds)}")
    places = {"directory": Path(directory) if directory else None, "text": Path(text) if text else None}
    return claim.run(Request(seeds, tiny, workers=workers, report=report, **places))


def _report(
    name: str, claim: Measured | Trained, data: Data, tiny: bool, output: str | None, form: str | None, as_json: bool
) -> int:
    """Print or write tables and verdict. Returns the exit code."""
    failed = [
        f"{recipe}, seed {seed} failed: {why}"
        for recipe, runs in data.get("failures", {}).items()
        for seed, why in runs.items()
    ]
    verdict = None if tiny or failed else claim.verdict(data)
    sentence = verdict or f"none: {'a run failed' if failed else 'these sizes only show that the command runs'}."
    if output is not None and not (failed and form != "json"):
        write_whole(output, _drawn(name, claim, data, sentence, str(form)))
    if as_json:
        print_json({"name": name, "claim": claim.sentence, "about": claim.about, "verdict": verdict, "data": data})
        return int(bool(failed))
    from rich import box
    from rich.table import Table

    print_text(f"Claim: {claim.sentence}.")
    for content in claim.tables(data):
        table = Table(*content.head, title=content.title, title_justify="left", box=box.SIMPLE_HEAD)
        for row in content.rows:
            table.add_row(*row)
        print_rich(table)
    for line in failed:
        print_text(shown(line))
    print_text(f"Verdict: {sentence}")
    return int(bool(failed))


def _drawn(name: str, claim: Measured | Trained, data: dict[str, Any], verdict: str, form: str) -> str | bytes:
    if form == "json":
        return json.dumps(data, indent=1, allow_nan=False) + "\n"
    from ..claims.picture import claim_page, picture

    return claim_page(claim, data, verdict) if form == "html" else picture(name, claim, data, form)
