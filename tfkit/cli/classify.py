"""`tfkit classify`: lines in, labels out."""

from __future__ import annotations

import argparse
import json

from .arguments import Parser, add_common, add_placing, reading, whole
from .output import speak_utf8
from .packages import TEXT, need_packages

EPILOG = """\
tfkit classify MODEL < texts.txt > labels.txt
MODEL is a directory that `tfkit train` made of a classification, or a model in
it. Line n of the output is the label of line n of the input; an empty line
stays empty. Lines longer than --max-length tokens, or than a table of
positions of the model, are judged by as many, and named on standard error.
--json prints one object a line: line, text, label, probability, and
probabilities by label."""


def arguments(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", type=reading, help="a directory that `tfkit train` made")
    parser.add_argument(
        "--max-length", type=_length, metavar="N", default=1024, help="tokens of a line that are read (default 1024)"
    )
    parser.add_argument("--batch-tokens", type=whole, metavar="N", default=4096, help="tokens read at once (default 4096)")
    add_placing(parser)
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    need_packages("train", *TEXT)
    speak_utf8()
    from ..text import Classifier
    from .device import placed
    from .line_stream import streamed

    classifier = Classifier.load(
        options.model, max_length=options.max_length, batch_tokens=options.batch_tokens, **placed(options)
    )
    for number, made in streamed(classifier.classify):
        if options.json:
            told = {"label": made.label, "probability": made.probability, "probabilities": made.probabilities}
            print(json.dumps({"line": number, "text": made.text, **told}))
        else:
            print(made.label or "")
    return 0


def _length(text: str) -> int:
    return whole(text, 3)
