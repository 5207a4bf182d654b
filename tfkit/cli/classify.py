"""`tfkit classify`: a label for each line of input."""

from __future__ import annotations

import json
from typing import Any

import click

from .options import READ, common, placement, whole
from .output import speak_utf8
from .packages import TEXT, need_packages

EPILOG = """\b
tfkit classify MODEL < texts.txt > labels.txt

\b
--json prints one object per line: line, text, label, probability, and
probabilities by label.
"""


def _length(value: str | int) -> int:
    return whole(value, 3)


@click.command("classify", epilog=EPILOG)
@click.argument("model", type=READ, help="A directory that `tfkit train` wrote for a classification, or a model in it.")
@click.option("--max-length", type=_length, metavar="N", default=1024, help="Longest line, in tokens; the rest is cut off.")
@click.option("--batch-tokens", type=whole, metavar="N", default=4096, help="Tokens of a batch.")
@placement
@common
def command(model: str, max_length: int, batch_tokens: int, as_json: bool, **place: Any) -> int:
    """Label lines of text with a trained classifier.

    Line n of the output is the label of line n of the input; an empty line stays empty. A line that is longer than
    --max-length, or than the position table of the model, is cut off there and reported on standard error.
    """
    need_packages("train", *TEXT)
    speak_utf8()
    from ..text import Classifier
    from .device import placed
    from .line_stream import streamed

    classifier = Classifier.load(model, max_length=max_length, batch_tokens=batch_tokens, **placed(**place))
    for number, made in streamed(classifier.classify):
        if as_json:
            found = {"label": made.label, "probability": made.probability, "probabilities": made.probabilities}
            print(json.dumps({"line": number, "text": made.text, **found}))
        else:
            print(made.label or "")
    return 0
