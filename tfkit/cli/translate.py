"""`tfkit translate`: a translation for each line of input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import tee
from typing import TYPE_CHECKING, Any

import click

from .options import READ, OneOf, common, cpu_table_option, loading, precision_option, whole
from .output import speak_utf8
from .packages import TEXT, import_torch, need_packages
from .search_args import (
    EXTRA_LENGTH,
    SAVED_SEARCH,
    alignment_of,
    alignment_options,
    check_workers,
    cuda_graphs_option,
    lengths_of,
    saved_search_of,
    search_of,
    search_options,
    shortlist_option,
    workers_of,
    workers_option,
)
from .usage import usage_error

if TYPE_CHECKING:
    from ..text import Translation, Translator

BEAMS = 5
AVERAGING = ("probabilities", "log_probabilities")
EPILOG = f"""\b
tfkit translate MODEL < in.txt > out.txt
tfkit translate MODEL MODEL MODEL < in.txt > out.txt

{SAVED_SEARCH}\b
With --n-best N a line of output is: number of the input line, score, text,
with tabs between them. --alignment adds a tab and the links of words.

\b
The text is what the tokeniser decodes. A space replaces each line feed and
each carriage return, with --n-best also each tab; with --json nothing.

\b
--json prints one object per line: line, source, and hypotheses with text,
score, log_probability, finished, pieces and token_log_probabilities; with
--attention SITE also the pieces of the source and the weights
(heads x target x source); with --alignment the links of words (alignment),
and the index of the source piece of each piece (piece_alignment).
"""


@click.command("translate", epilog=EPILOG)
@click.argument(
    "models", nargs=-1, required=True, type=READ, metavar="MODEL...",
    help="A directory that `tfkit train` wrote, or a model in it; several translate together.",
)  # fmt: skip
@search_options(beams=BEAMS)
@click.option("--extra-length", type=whole, metavar="N", help=f"Tokens more than the source at most (default: {EXTRA_LENGTH}).")
@click.option("--max-source", type=whole, metavar="N", default=1024, help="Longest line, in tokens; the rest is cut off.")
@click.option("--batch-tokens", type=whole, metavar="N", default=4096, help="Tokens of a batch.")
@click.option("--prefix", metavar="TEXT", help="Text that every translation begins with.")
@click.option("--prefixes", type=READ, metavar="FILE", help="A line for each line of input: what its translation begins with.")
@click.option("--target-language", metavar="CODE", help="Of a model for several, as its tokeniser writes it: de_DE, de, deu.")
@click.option("--split", metavar="CODE", help="Divide lines into sentences of this language, as en, and join the translations.")
@click.option("--attention", metavar="SITE", multiple=True, help="With --json: `decoder.*.cross_attention`.")
@click.option(
    "--ensemble", type=OneOf("average", AVERAGING), metavar="NAME",
    help="What several models average: probabilities, as fairseq, or log_probabilities, as OpenNMT-py "
    "(default: probabilities).",
)  # fmt: skip
@shortlist_option
@alignment_options
@cuda_graphs_option
@workers_option
@precision_option
@loading
@cpu_table_option
@common
def command(
    models: tuple[str, ...], n_best: int, extra_length: int | None, max_source: int, batch_tokens: int, prefix: str | None,
    prefixes: str | None, target_language: str | None, split: str | None, attention: tuple[str, ...],
    ensemble: str | None, shortlist: bool, alignment: bool, alignment_site: str | None, alignment_head: int | None,
    cuda_graphs: bool, workers: int | None, precision: str, device: str, backend: list[str] | None, auto_table: str | None,
    allow_nan: bool, cpu_table: str | None, as_json: bool, **search: Any,
) -> int:  # fmt: skip
    """Translate lines of text with a trained model.

    Line n of the output translates line n of the input; an empty line stays empty. A line that is longer than --max-source,
    or than the position table of the model, is cut off there and reported on standard error. So is a translation that has no
    end within the limit of tokens.
    """
    need_packages("train", *TEXT)
    speak_utf8()
    if attention and not as_json:
        raise usage_error("--attention needs --json", "weights are not text")
    if prefix is not None and prefixes is not None:
        raise usage_error("--prefix and --prefixes exclude each other", "write one of them")
    if split is not None:
        need_packages("split", "sentencex")
        if n_best > 1 or attention or alignment or alignment_site:
            raise usage_error("--split has one hypothesis, no weights and no alignment", "leave --n-best and --alignment out")
    import_torch()
    from ..data import lines
    from ..data.pharaoh import links_text
    from ..text import Translator
    from ..text.translator import one_line
    from .device import chosen_device, loaded, use_cpu_table
    from .line_stream import streamed

    device = chosen_device(device, precision != "float32" or cpu_table or (workers or 1) > 1)
    use_cpu_table(cpu_table, device)
    if ensemble is not None and len(models) == 1:
        raise usage_error("--ensemble is for several models, and one is named", "leave it out, or name another")
    saved = saved_search_of(models[0])
    search |= lengths_of(saved, extra_length)
    translator = Translator.load(
        models, search_of(BEAMS, saved, n_best=n_best, **search), max_source=max_source,
        batch_tokens=batch_tokens, attention=list(attention), workers=workers_of(workers, device),
        precision=precision, alignment=alignment_of(alignment, alignment_site, alignment_head),
        ensemble="log_probabilities" if ensemble == "log_probabilities" else "probabilities", cuda_graphs=cuda_graphs,
        shortlist=shortlist,
        **loaded(device, backend, auto_table, allow_nan),
    )  # fmt: skip
    check_workers(workers, device, translator.model)
    if target_language is not None:
        translator.language_ids(target_language)  # an error comes before the first line is read

    def translate(read: Iterator[str], *, chunk: int) -> Iterator[Translation]:
        starts: Iterator[str] | None = None
        if prefixes is not None:
            starts = lines(prefixes)
        elif prefix:
            read, copy = tee(read)
            starts = (prefix for _ in copy)
        return translator.translate(read, chunk=chunk, prefixes=starts, target_language=target_language, split=split)

    for number, translation in streamed(translate):
        if translation.hypotheses and not translation.hypotheses[0].finished:
            count = len(translation.hypotheses[0].ids)
            fix = "--extra-length N allows more"
            print(f"<stdin>:{number}: the translation was cut off after {count:,} tokens; {fix}", file=sys.stderr)
        if as_json:
            print(json.dumps(_data(number, translation, translator), allow_nan=False))
        elif n_best == 1 and not translation.alignments:
            print(one_line(translation.text))
        elif n_best == 1:
            print(one_line(translation.text).replace("\t", " "), links_text(translation.alignments[0]), sep="\t")
        else:
            # an empty line has no hypothesis
            scores = [f"{hypothesis.score:.4f}" for hypothesis in translation.hypotheses] or [""]
            links = [[links_text(one)] for one in translation.alignments] or [[]] * len(scores)
            for text, score, more in zip(translation.texts, scores, links, strict=True):
                print(number, score, one_line(text).replace("\t", " "), *more, sep="\t")
    return 0


def _data(number: int, translation: Translation, translator: Translator) -> dict[str, Any]:
    target = translator.tokenisers["target"]
    hypotheses = [
        {
            "text": text,
            "score": hypothesis.score,
            "log_probability": hypothesis.log_probability,
            "finished": hypothesis.finished,
            "pieces": target.pieces(hypothesis.ids.tolist()),
            "token_log_probabilities": hypothesis.token_log_probabilities.tolist(),
            **(
                {"attention": {site: weights.tolist() for site, weights in hypothesis.attention.items()}}
                if hypothesis.attention
                else {}
            ),
        }
        for text, hypothesis in zip(translation.texts, translation.hypotheses, strict=False)
    ]
    for fields, links, by_piece in zip(hypotheses, translation.alignments, translation.piece_alignments, strict=False):
        fields |= {"alignment": links, "piece_alignment": by_piece}
    pieces = translator.tokenisers["source"].pieces(translation.source_ids)
    return {"line": number, "source": translation.source, "source_pieces": pieces, "hypotheses": hypotheses}
