"""`tfkit classify`: a label for each line of input, a text or a pair of texts, or for each image."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from ..errors import Diagnostic, InputError, Location
from .options import READ, common, loading, whole
from .output import print_text, speak_utf8
from .packages import TEXT, import_torch, need_packages

EPILOG = """\b
tfkit classify MODEL < texts.txt > labels.txt
tfkit classify MODEL < pairs.tsv > labels.txt
tfkit classify MODEL digit.png photo.jpg

\b
--json prints one object per line: line and text, or file; label, probability,
and probabilities by label.
"""


def _length(value: str | int) -> int:
    return whole(value, 3)


@click.command("classify", epilog=EPILOG)
@click.argument("model", type=READ, help="A directory that `tfkit train` wrote for a classification, or a model in it.")
@click.argument("images", nargs=-1, type=READ, metavar="[IMAGE]...", help="PNG or JPEG files, for a classifier of images.")
@click.option("--max-length", type=_length, metavar="N", default=1024, help="Longest line, in tokens; the rest is cut off.")
@click.option("--batch-tokens", type=whole, metavar="N", default=4096, help="Tokens of a batch.")
@loading
@common
def command(model: str, images: tuple[str, ...], max_length: int, batch_tokens: int, as_json: bool, **place: Any) -> int:
    """Label lines of text, pairs of texts, or images, with a trained classifier.

    A classifier that was trained on data of kind `pairs` reads two texts per line, with a tab between them. If its tokens node
    has segments, the first text is segment 0 and the second one segment 1.

    Without an IMAGE, line n of the output is the label of line n of the input; an empty line stays empty. A line that is
    longer than --max-length, or than the position table of the model, is cut off there and reported on standard error.

    Of each IMAGE a line is printed: its label, the probability of the label, and the name of the file, with tabs between them.
    """
    need_packages("train", *TEXT)
    speak_utf8()
    import_torch()
    from .device import loaded

    if images:
        _classify_images(model, images, as_json, loaded(**place))
        return 0
    from ..text import Classification, Classifier
    from .line_stream import streamed

    classifier = Classifier.load(model, max_length=max_length, batch_tokens=batch_tokens, **loaded(**place))

    def classify(lines: Iterator[str], *, chunk: int) -> Iterator[Classification]:
        return classifier.classify(_pairs(lines) if classifier.pairs else lines, chunk=chunk)

    for number, classification in streamed(classify):
        if as_json:
            fields = {
                "label": classification.label,
                "probability": classification.probability,
                "probabilities": classification.probabilities,
            }
            print(json.dumps({"line": number, "text": classification.text, **fields}, allow_nan=False))
        else:
            print(classification.label or "")
    return 0


def _pairs(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The two texts of every line; two empty ones for an empty line. Raises InputError for a line without exactly one tab."""
    for number, line in enumerate(lines, 1):
        first, *others = line.split("\t")
        if line.strip() and len(others) != 1:
            message = f"the line has {len(others)} tabs, and the classifier reads pairs"
            fix = "write two texts with a tab between them"
            raise InputError(Diagnostic("TFK115", message, fix, location=Location("<stdin>", number)))
        yield first, "".join(others)


def _classify_images(model: str, images: tuple[str, ...], as_json: bool, place: dict[str, Any]) -> None:
    from ..images import ImageClassifier
    from ..view.terminal import shown

    for classification in ImageClassifier.load(model, **place).classify(images):
        if as_json:
            fields = {
                "label": classification.label,
                "probability": classification.probability,
                "probabilities": classification.probabilities,
            }
            print(json.dumps({"file": classification.file, **fields}, allow_nan=False))
        else:
            print_text(f"{shown(classification.label)}\t{classification.probability:.4f}\t{shown(classification.file)}")
