"""`tfkit fill`: the most probable tokens for each mask of a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .options import READ, common, loading, whole
from .output import print_text, speak_utf8
from .packages import TEXT, import_torch, need_packages

if TYPE_CHECKING:
    from ..text import Filling

EPILOG = """\b
tfkit fill MODEL --text "the hero is <mask>"
tfkit fill bert --text "The capital of Japan is [MASK]." --top 1
tfkit fill MODEL < masked.txt

\b
A line of output is a token: number of the text, number of its mask, piece,
probability, with tabs between them.

\b
--json prints one object per text: line, text, filled (the text with the best
token of each mask), and masks, a list of tokens for each, with token, id and
probability.
"""


@click.command("fill", epilog=EPILOG)
@click.argument("model", type=READ, help="A directory that `tfkit train` wrote for masked text, or a model in it.")
@click.option("--text", metavar="TEXT", multiple=True, help="Text with masks. May be repeated.")
@click.option("--top", type=whole, metavar="N", default=5, help="Tokens for each mask, at most 1000.")
@click.option("--max-length", type=whole, metavar="N", default=1024, help="Longest text, in tokens.")
@click.option("--batch-tokens", type=whole, metavar="N", default=4096, help="Tokens of a batch.")
@loading
@common
def command(
    model: str, text: tuple[str, ...], top: int, max_length: int, batch_tokens: int, as_json: bool, **place: Any
) -> int:
    """Fill in the masks of texts with a model that was trained on masked text.

    A mask is written as the mask token of the model: <mask> after `tfkit train`, [MASK] in an imported BERT. It stands for one
    piece. The probabilities of several masks do not depend on each other: each mask is filled while the others are hidden.

    Without --text, each line of standard input is a text. An empty line has no output. A text without a mask, and one that is
    longer than --max-length or the position table of the model, is refused.
    """
    need_packages("train", *TEXT)
    speak_utf8()
    import_torch()
    from ..text import MaskFiller
    from ..view.terminal import shown
    from .device import loaded
    from .line_stream import streamed

    filler = MaskFiller.load(model, max_length=max_length, batch_tokens=batch_tokens, **loaded(**place))
    file = None if text else "<stdin>"

    def fill(lines: Iterator[str], *, chunk: int) -> Iterator[Filling]:
        return filler.fill(lines, top=top, chunk=chunk, file=file)

    for number, filling in streamed(fill, lambda _: "", "--text" if text else None, iter(text) if text else None):
        if as_json:
            masks = [[asdict(candidate) for candidate in candidates] for candidates in filling.masks]
            fields = {"text": filling.text, "filled": filling.filled, "masks": masks}
            print(json.dumps({"line": number, **fields}, allow_nan=False))
            continue
        for mask, candidates in enumerate(filling.masks, 1):
            for candidate in candidates:
                print_text(f"{number}\t{mask}\t{shown(candidate.token)}\t{candidate.probability:.4f}")
    return 0
