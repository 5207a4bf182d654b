"""`tfkit score`: BLEU, chrF and TER of translations, computed by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..errors import Diagnostic, InputError
from ..metrics import TOKENISERS, Score
from .options import READ, OneOf, common, whole
from .output import print_json, print_text
from .packages import TEXT, need_packages
from .usage import usage_error

NAMES = {"bleu": "BLEU", "bleu_lowercase": "BLEU, lowercase", "chrf": "chrF2", "ter": "TER"}
MAX_CHARACTERS = 100_000
"""Of a line. The time that sacrebleu needs rises with the characters of a line."""
MAX_WORDS = 300
"""Of a line for TER, whose time rises with the cube of their number at worst."""
RESAMPLES = 1000
EPILOG = """\b
tfkit score out.de reference.de
tfkit score out.de reference-1.de reference-2.de --ter
tfkit score new.de reference.de --baseline old.de

\b
--baseline adds sacrebleu's paired bootstrap test: p is the probability of
such a difference if both were equally good. SACREBLEU_SEED sets the seed.
"""


@click.command("score", epilog=EPILOG)
@click.argument("translations", metavar="FILE", type=READ, help="Translations, one per line.")
@click.argument("reference", type=READ, help="Reference translations of the same lines.")
@click.argument("references", nargs=-1, type=READ, metavar="[REFERENCE]...", help="Further references of the same lines.")
@click.option(
    "--tokenise", metavar="NAME", type=OneOf("tokeniser", TOKENISERS),
    help=f"sacrebleu's tokeniser for BLEU: {', '.join(TOKENISERS)}. By default the script of the reference chooses: zh for "
    "Chinese, char for Japanese, Thai, Lao, Tibetan, Burmese and Khmer, 13a for all others.",
)  # fmt: skip
@click.option("--ter", is_flag=True, help="Also the translation edit rate, which is slow; lower is better.")
@click.option("--baseline", type=READ, metavar="FILE", help="Translations by another system: is the difference significant?")
@click.option("--resamples", type=whole, metavar="N", help=f"Of the test against the baseline (default: {RESAMPLES}).")
@common
def command(
    translations: str, reference: str, references: tuple[str, ...], tokenise: str | None, ter: bool, baseline: str | None,
    resamples: int | None, as_json: bool,
) -> int:  # fmt: skip
    """Score translations against one reference or several: BLEU and chrF, on request TER.

    All files are plain text (or .gz), one sentence per line, not tokenised, of at most 100,000 characters each, with --ter at
    most 300 words. sacrebleu tokenises them; its signature names the tokeniser. `tfkit train` scores in the same way
    (`validation.tokenise`). An empty line of a further reference is none.
    """
    need_packages("train", *TEXT, "sacrebleu")
    from ..data import rows
    from ..metrics import corpus_scores

    if resamples is not None and baseline is None:
        raise usage_error("--resamples belongs to --baseline", "name the translations of another system")
    paths = (translations, reference, *references, *([] if baseline is None else [baseline]))
    lines = list(rows(*paths, descriptors=True))
    for number, row in enumerate(lines, 1):
        _check(number, paths, row, ter)
    columns = [list(column) for column in zip(*lines, strict=True)]
    for path, column in zip(paths[1 : 2 + len(references)], columns[1:], strict=False):
        if not any(map(str.strip, column)):
            message = f"{path}: no line of {len(column):,} has text"
            raise InputError(Diagnostic("TFK103", message, "name a reference that has text"))
    scores = corpus_scores(
        columns[0], columns[1], tokenise, more_references=columns[2 : 2 + len(references)], ter=ter,
        baseline=None if baseline is None else columns[-1], resamples=resamples or RESAMPLES,
    )  # fmt: skip
    if as_json:
        print_json({name: _data(score) for name, score in scores.items()})
        return 0
    width = max(len(NAMES[name]) for name in scores)
    for name, score in scores.items():
        print_text(f"{NAMES[name]:<{width}}  {score.value:6.2f}  {score.signature}\n{'':<{width}}          {score.verbose}")
        if (other := score.comparison) is not None:
            difference = f"{score.value - other.baseline:+.2f} against {other.baseline:.2f}, p = {other.p_value:.4f}"
            interval = (
                f"{other.mean:.2f} ± {other.interval:.2f} against {other.baseline_mean:.2f} ± {other.baseline_interval:.2f}"
            )
            print_text(f"{'':<{width}}          {difference}; resampled: {interval}")
    return 0


def _check(number: int, paths: Sequence[str], row: Sequence[str], ter: bool) -> None:
    """Raises InputError for a line that takes too long to score."""
    for path, line in zip(paths, row, strict=True):
        if len(line) > MAX_CHARACTERS:
            message = f"{path}:{number}: the line has {len(line):,} characters, and at most {MAX_CHARACTERS:,} are scored"
            raise InputError(Diagnostic("TFK103", message, "write one sentence per line"))
        if ter and (count := len(line.split())) > MAX_WORDS:
            message = f"{path}:{number}: the line has {count:,} words, and TER is computed of at most {MAX_WORDS:,}"
            raise InputError(Diagnostic("TFK103", message, "write one sentence per line, or leave --ter out"))


def _data(score: Score) -> dict[str, object]:
    data: dict[str, object] = {"score": score.value, "signature": score.signature}
    if (other := score.comparison) is not None:
        data |= {
            "baseline": other.baseline, "p_value": other.p_value, "mean": other.mean, "interval": other.interval,
            "baseline_mean": other.baseline_mean, "baseline_interval": other.baseline_interval,
        }  # fmt: skip
    return data
