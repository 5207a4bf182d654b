"""`tfkit tag`: a tag for each word of the input."""

from __future__ import annotations

import json
from typing import Any

import click

from .options import READ, common, loading, whole
from .output import speak_utf8
from .packages import TEXT, import_torch, need_packages

EPILOG = """\b
tfkit tag MODEL < sentences.txt > tags.txt

\b
--json prints one object per line: line, words, tags, and probabilities of
the tags.
"""


def _length(value: str | int) -> int:
    return whole(value, 3)


@click.command("tag", epilog=EPILOG)
@click.argument("model", type=READ, help="A directory that `tfkit train` wrote for tagged words, or a model in it.")
@click.option("--max-length", type=_length, metavar="N", default=1024, help="Longest row of tokens; longer lines are divided.")
@click.option("--batch-tokens", type=whole, metavar="N", default=4096, help="Tokens of a batch.")
@loading
@common
def command(model: str, max_length: int, batch_tokens: int, as_json: bool, **place: Any) -> int:
    """Tag the words of lines of text with a trained tagger.

    White space separates words. Line n of the output has a tag for each word of line n of the input, with spaces between them.
    """
    need_packages("train", *TEXT)
    speak_utf8()
    import_torch()
    from ..text import Tagger
    from .device import loaded
    from .line_stream import streamed

    tagger = Tagger.load(model, max_length=max_length, batch_tokens=batch_tokens, **loaded(**place))
    for number, tagged in streamed(tagger.tag):
        if as_json:
            fields = {"words": tagged.words, "tags": tagged.tags, "probabilities": tagged.probabilities}
            print(json.dumps({"line": number, **fields}, allow_nan=False))
        else:
            print(" ".join(tagged.tags))
    return 0
