"""`tfkit answer`: the answer to each question of the input, a part of the text beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..errors import Diagnostic, InputError, Location
from .options import READ, common, loading, whole
from .output import speak_utf8
from .packages import TEXT, import_torch, need_packages

if TYPE_CHECKING:
    from ..text import Answer

EPILOG = """\b
tfkit answer MODEL < questions.tsv > answers.txt

\b
With --n-best N a line of output is: number of the input line, score, text,
with tabs between them.

\b
--json prints one object per line: line, question, answer (null if there is
none), its score, start and end; no_answer, the probability that there is
none; and spans, the best ones, with text, score, start and end. Characters
of the context count from 0; end is behind the last one.
"""


def _length(value: str | int) -> int:
    return whole(value, 5)


@click.command("answer", epilog=EPILOG)
@click.argument("model", type=READ, help="A directory that `tfkit train` wrote for questions, or a model in it.")
@click.option("--n-best", type=whole, metavar="N", default=1, help="Spans of each answer.")
@click.option("--always", is_flag=True, help="Print the best span even if no answer is more probable.")
@click.option("--max-length", type=_length, metavar="N", help="Longest row of tokens; longer contexts are read in windows.")
@click.option("--stride", type=whole, metavar="N", help="Most tokens from the start of a window to that of the next.")
@click.option("--max-answer", type=whole, metavar="N", help="Tokens of an answer at most.")
@click.option("--batch-tokens", type=whole, metavar="N", default=4096, help="Tokens of a batch.")
@loading
@common
def command(
    model: str, n_best: int, always: bool, max_length: int | None, stride: int | None, max_answer: int | None,
    batch_tokens: int, as_json: bool, **place: Any,
) -> int:  # fmt: skip
    """Answer questions about texts with a trained model.

    A line of input is a question and a text, with a tab between them. Line n of the output is the part of the text that answers
    question n; it is empty if there is no answer, or if the line is empty. A model that was trained without unanswerable
    questions always gives an answer.

    The length of a row, the stride and the longest answer are those of training unless options set them. A question that leaves
    no room for its text is cut off and reported on standard error.
    """
    need_packages("train", *TEXT)
    speak_utf8()
    import_torch()
    from ..text import Answerer
    from .device import loaded
    from .line_stream import streamed

    answerer = Answerer.load(
        model, max_length=max_length, stride=stride, max_answer=max_answer, unanswerable=False if always else None,
        batch_tokens=batch_tokens, **loaded(**place),
    )  # fmt: skip

    def answer(lines: Iterator[str], *, chunk: int) -> Iterator[Answer]:
        return answerer.answer(_questions(lines), best=n_best, chunk=min(chunk, CHUNK))

    for number, prediction in streamed(answer):
        if as_json:
            print(json.dumps(_data(number, prediction), allow_nan=False))
        elif n_best == 1:
            print(prediction.text)
        else:
            none = [(prediction.no_answer, "")] if prediction.span is None else []
            for score, text in [*none, *((span.score, span.text) for span in prediction.spans)][:n_best]:
                print(number, f"{score:.4f}", text, sep="\t")
    return 0


CHUNK = 100
"""Questions that are batched together; their contexts may be long."""


def _data(number: int, prediction: Answer) -> dict[str, Any]:
    best = prediction.span
    fields = {
        "answer": None if best is None else best.text,
        **{name: getattr(best, name, None) for name in ("score", "start", "end")},
    }
    spans = list(map(asdict, prediction.spans))
    return {"line": number, "question": prediction.question, **fields, "no_answer": prediction.no_answer, "spans": spans}


def _questions(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The question and the text of every line; two empty ones for an empty line. Raises InputError for another number of tabs
    than one."""
    for number, line in enumerate(lines, 1):
        question, *texts = line.split("\t")
        if line.strip() and len(texts) != 1:
            message = f"the line has {len(texts)} tabs" if len(texts) > 1 else "the line has no tab"
            fix = "write a question and a text with one tab between them"
            raise InputError(Diagnostic("TFK135", message, fix, location=Location("<stdin>", number)))
        yield question, "".join(texts)
