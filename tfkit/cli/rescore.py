"""`tfkit rescore`: the log-probability that a model gives to translations or texts that exist."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..errors import Diagnostic, InputError, Location
from ..view.terminal import shown
from .options import READ, common, loading, precision_option, whole
from .output import speak_utf8
from .packages import TEXT, import_torch, need_packages
from .search_args import alignment_of, alignment_options
from .usage import usage_error

if TYPE_CHECKING:
    from ..text import Rescored

EPILOG = """\b
tfkit rescore MODEL in.en out.de > scores.txt
paste in.en out.de | tfkit rescore MODEL > scores.txt
tfkit rescore LANGUAGE-MODEL < texts.txt > scores.txt

\b
--json prints one object per line: line, source and target (or text),
log_probability, pieces, token_log_probabilities, with --alignment the links
of words (alignment), and reason if there is no log-probability.
"""


def _length(value: str | int) -> int:
    return whole(value, 2)


@click.command("rescore", epilog=EPILOG)
@click.argument("model", type=READ, help="A directory that `tfkit train` wrote, or a model in it.")
@click.argument("files", nargs=-1, type=READ, metavar="[FILE]...", help="Sources and translations; texts of a language model.")
@click.option("--target-language", metavar="CODE", help="Of a model for several, as its tokeniser writes it: de_DE, de, deu.")
@click.option("--end", is_flag=True, help="Score the end of a text too, as data of kind `texts` train it.")
@click.option("--max-length", type=_length, metavar="N", default=1024, help="Longest side of a row, in tokens.")
@click.option("--batch-tokens", type=whole, metavar="N", default=4096, help="Tokens of a batch.")
@alignment_options
@precision_option
@loading
@common
def command(
    model: str, files: tuple[str, ...], target_language: str | None, end: bool, max_length: int, batch_tokens: int,
    precision: str, alignment: bool, alignment_site: str | None, alignment_head: int | None, as_json: bool, **place: Any,
) -> int:  # fmt: skip
    """Print the log-probability that a model gives to each translation, or to each text.

    Two files are read line by line: line n of the second translates line n of the first. Without a file, each line of standard
    input is a source and its translation with a tab between them. A language model reads one file, or a text on each line of
    standard input.

    Line n of the output is log P of row n: a sum over its tokens, in nats, the end token included. It is the unsmoothed loss of
    training with the sign changed. --alignment adds a tab and the links of words. A row with an empty side, or one longer
    than --max-length or the position table of the model, has an empty line, and is named on standard error unless it is empty.
    """
    need_packages("train", *TEXT)
    speak_utf8()
    import_torch()
    from ..data import lines, rows
    from ..data.pharaoh import links_text
    from ..text import Rescorer
    from .device import loaded
    from .line_stream import streamed

    rescorer = Rescorer.load(
        model, max_length=max_length, batch_tokens=batch_tokens, precision=precision,
        alignment=alignment_of(alignment, alignment_site, alignment_head), end=end, **loaded(**place),
    )  # fmt: skip
    if files and len(files) != 1 + rescorer.pairs:
        needed = "two files, sources and translations" if rescorer.pairs else "one file of texts"
        raise usage_error(f"the model reads {needed}, and {len(files)} are named", "name these, or use standard input")
    if target_language is not None and not rescorer.pairs:
        raise usage_error("--target-language belongs to models that translate", "leave it out")
    if end and rescorer.pairs:
        raise usage_error("--end belongs to models of texts; a translation is scored with its end", "leave it out")
    name = files[-1] if files else "<stdin>"

    def rescore(read: Iterator[str], *, chunk: int) -> Iterator[Rescored]:
        pairs: Iterator[Any] = rows(*files, descriptors=True) if len(files) == 2 else _pairs(read) if rescorer.pairs else read
        return rescorer.rescore(pairs, chunk=chunk, target_language=target_language)

    read = lines(files[0], descriptors=True) if len(files) == 1 else iter(()) if files else None

    def notice(result: Rescored) -> str:
        """Why a row has no log-probability, with the file of a source."""
        if not result.reason:
            return ""
        place = f" (in {shown(files[0])})" if len(files) == 2 and result.reason.startswith("the source") else ""
        return f"{result.reason}{place}; the row has no log-probability"

    for number, result in streamed(rescore, notice, name, read):
        if as_json:
            texts = {"source": result.source, "target": result.target} if rescorer.pairs else {"text": result.target}
            fields = {
                "log_probability": result.log_probability,
                "pieces": result.pieces,
                "token_log_probabilities": result.token_log_probabilities,
                **({"alignment": result.alignment} if result.alignment is not None else {}),
                **({"reason": result.reason} if result.reason else {}),
            }
            print(json.dumps({"line": number, **texts, **fields}, allow_nan=False))
        else:
            links = [] if result.alignment is None else [links_text(result.alignment)]
            print("" if result.log_probability is None else f"{result.log_probability:.4f}", *links, sep="\t")
    return 0


def _pairs(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The two texts of every line; two empty ones for an empty line. Raises InputError for a line without exactly one tab."""
    for number, line in enumerate(lines, 1):
        first, *others = line.split("\t")
        if line.strip() and len(others) != 1:
            message = f"the line has {len(others)} tabs, and a row is a source and its translation"
            fix = "write one tab between them, or name two files"
            raise InputError(Diagnostic("TFK115", message, fix, location=Location("<stdin>", number)))
        yield first, "".join(others)
