"""`tfkit tag`: a tag for each word of the input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..errors import Diagnostic, InputError, Location
from .options import READ, common, loading, whole
from .output import speak_utf8
from .packages import TEXT, import_torch, need_packages

if TYPE_CHECKING:
    from ..text.tagger import Tagging

MAX_BYTES = 32_768
"""Of a line. Longer ones make many full rows, whose time rises with the square of their length."""
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
    A line has at most 32,768 bytes.
    """
    need_packages("train", *TEXT)
    speak_utf8()
    import_torch()
    from ..text import Tagger
    from .device import loaded
    from .line_stream import streamed

    tagger = Tagger.load(model, max_length=max_length, batch_tokens=batch_tokens, **loaded(**place))

    def tag(lines: Iterator[str], *, chunk: int) -> Iterator[Tagging]:
        return tagger.tag(_bounded(lines), chunk=chunk)

    for number, tagged in streamed(tag):
        if as_json:
            fields = {"words": tagged.words, "tags": tagged.tags, "probabilities": tagged.probabilities}
            print(json.dumps({"line": number, **fields}, allow_nan=False))
        else:
            print(" ".join(tagged.tags))
    return 0


def _bounded(lines: Iterator[str]) -> Iterator[str]:
    """The lines. Raises InputError for one that is too long."""
    for number, line in enumerate(lines, 1):
        if (size := len(line.encode())) > MAX_BYTES:
            message = f"the line has {size:,} bytes, and at most {MAX_BYTES:,} are tagged"
            raise InputError(Diagnostic("TFK101", message, "write one sentence per line", location=Location("<stdin>", number)))
        yield line
