"""`tfkit score`: BLEU and chrF of translations, computed by sacrebleu."""

from __future__ import annotations

import click

from ..errors import Diagnostic, InputError
from ..metrics import TOKENISERS
from .options import READ, OneOf, common
from .output import print_json, print_text
from .packages import TEXT, need_packages

NAMES = {"bleu": "BLEU", "bleu_lowercase": "BLEU, lowercase", "chrf": "chrF2"}
MAX_CHARACTERS = 100_000
"""Of a line. The time that sacrebleu needs rises with the characters of a line."""


@click.command("score", epilog="\b\ntfkit score out.de reference.de")
@click.argument("translations", metavar="FILE", type=READ, help="Translations, one per line.")
@click.argument("reference", type=READ, help="Reference translations of the same lines.")
@click.option(
    "--tokenise", metavar="NAME", type=OneOf("tokeniser", TOKENISERS),
    help=f"sacrebleu's tokeniser for BLEU: {', '.join(TOKENISERS)}. By default the script of the reference chooses: zh for "
    "Chinese, char for Japanese, Thai, Lao, Tibetan, Burmese and Khmer, 13a for all others.",
)  # fmt: skip
@common
def command(translations: str, reference: str, tokenise: str | None, as_json: bool) -> int:
    """Score translations against a reference: BLEU and chrF.

    Both files are plain text (or .gz), one sentence per line, not tokenised, of at most 100,000 characters each. sacrebleu
    tokenises them; its signature names the tokeniser. `tfkit train` scores in the same way (`validation.tokenise`).
    """
    need_packages("train", *TEXT, "sacrebleu")
    from ..data import rows
    from ..metrics import corpus_scores

    pairs = list(rows(translations, reference, descriptors=True))
    for number, pair in enumerate(pairs, 1):
        for path, line in zip((translations, reference), pair, strict=True):
            if len(line) > MAX_CHARACTERS:
                message = f"{path}:{number}: the line has {len(line):,} characters, and at most {MAX_CHARACTERS:,} are scored"
                raise InputError(Diagnostic("TFK103", message, "write one sentence per line"))
    if not any(wanted.strip() for _, wanted in pairs):
        message = f"{reference}: no line of {len(pairs):,} has text"
        raise InputError(Diagnostic("TFK103", message, "name a reference that has text"))
    scores = corpus_scores([translation for translation, _ in pairs], [wanted for _, wanted in pairs], tokenise)
    if as_json:
        print_json({name: {"score": score.value, "signature": score.signature} for name, score in scores.items()})
        return 0
    width = max(map(len, NAMES.values()))
    for name, score in scores.items():
        print_text(f"{NAMES[name]:<{width}}  {score.value:6.2f}  {score.signature}\n{'':<{width}}          {score.verbose}")
    return 0
