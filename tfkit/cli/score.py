"""`tfkit score`: BLEU and chrF of translations by sacrebleu."""

from __future__ import annotations

import argparse

from ..errors import Diagnostic, InputError
from .arguments import Parser, add_common, reading
from .output import print_json, print_text
from .packages import TEXT, need_packages

EPILOG = """\
tfkit score out.de reference.de
Both files are plain text (or .gz), a sentence a line, not tokenised: sacrebleu
does that, and its signature says how. `tfkit train` scores in the same way."""
NAMES = {"bleu": "BLEU", "bleu_lowercase": "BLEU, lowercase", "chrf": "chrF2"}


def arguments(parser: Parser) -> None:
    parser.add_argument("translations", metavar="FILE", type=reading, help="translations, one a line")
    parser.add_argument("reference", metavar="REFERENCE", type=reading, help="what they should have been, line by line")
    parser.add_argument(
        "--tokenise", metavar="NAME", choices=("13a", "intl", "zh", "char", "ja-mecab", "ko-mecab", "none"),
        help="sacrebleu's tokeniser for BLEU (default 13a; char for Korean, Chinese and Japanese)",
    )  # fmt: skip
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    need_packages("train", *TEXT, "sacrebleu")
    from ..data import rows
    from ..metrics import corpus_scores

    pairs = list(rows(options.translations, options.reference, descriptors=True))
    if not any(wanted.strip() for _, wanted in pairs):
        message = f"{options.reference}: no line of {len(pairs):,} has text"
        raise InputError(Diagnostic("TFK103", message, "name a reference that has text"))
    scores = corpus_scores([made for made, _ in pairs], [wanted for _, wanted in pairs], options.tokenise)
    if options.json:
        print_json({name: {"score": each.value, "signature": each.signature} for name, each in scores.items()})
        return 0
    width = max(map(len, NAMES.values()))
    for name, each in scores.items():
        print_text(f"{NAMES[name]:<{width}}  {each.value:6.2f}  {each.signature}\n{'':<{width}}          {each.verbose}")
    return 0
