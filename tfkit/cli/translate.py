"""`tfkit translate`: lines in, lines out."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from .arguments import Parser, add_common, add_placing, reading, whole
from .output import speak_utf8
from .packages import TEXT, need_packages
from .search_args import add_search, add_workers, check_workers, search_of, workers_of

if TYPE_CHECKING:
    from ..text import Translation, Translator

BEAMS = 5
EPILOG = """\
tfkit translate MODEL < in.txt > out.txt
MODEL is a directory that `tfkit train` made, or a model in it. Line n of the
output translates line n of the input; an empty line stays empty. Lines longer
than --max-source tokens, or than a table of positions of the model, are
translated as far as that, and named on standard error.
With --n-best N a line of output is: number of the input line, score, text,
with tabs between them.
--json prints one object a line: line, source, and hypotheses with text, score,
log_probability, finished, pieces and token_log_probabilities; with --attention
SITE also the pieces of the source and the weights (heads x target x source)."""


def arguments(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", type=reading, help="a directory that `tfkit train` made")
    add_search(parser, BEAMS)
    parser.add_argument("--extra-length", type=whole, metavar="N", default=50, help="tokens more than the source (default 50)")
    parser.add_argument(
        "--max-source", type=whole, metavar="N", default=1024, help="tokens of a line that are read (default 1024)"
    )
    parser.add_argument("--batch-tokens", type=whole, metavar="N", default=4096, help="tokens of a batch (default 4096)")
    parser.add_argument(
        "--attention", metavar="SITE", action="append", default=[], help="with --json: `decoder.*.cross_attention`"
    )
    add_workers(parser)
    add_placing(parser)
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    need_packages("train", *TEXT)
    speak_utf8()
    from .arguments import usage_error

    if options.attention and not options.json:
        raise usage_error("--attention needs --json", "weights are no text")
    from ..text import Translator
    from .device import placed
    from .line_stream import streamed

    search = search_of(options, BEAMS, extra_length=options.extra_length)
    translator = Translator.load(
        options.model, search, max_source=options.max_source, batch_tokens=options.batch_tokens, attention=options.attention,
        workers=workers_of(options), **placed(options),
    )  # fmt: skip
    check_workers(options, translator.model)
    for number, made in streamed(translator.translate):
        if options.json:
            print(json.dumps(_data(number, made, translator)))
        elif options.n_best == 1:
            print(made.text)
        else:
            scores = [f"{each.score:.4f}" for each in made.hypotheses] or [""]  # an empty line has no hypothesis
            for text, score in zip(made.texts, scores, strict=True):
                print(number, score, text, sep="\t")
    return 0


def _data(number: int, made: Translation, translator: Translator) -> dict[str, Any]:
    target = translator.tokenisers["target"]
    hypotheses = [
        {
            "text": text,
            "score": each.score,
            "log_probability": each.log_probability,
            "finished": each.finished,
            "pieces": target.pieces(each.ids.tolist()),
            "token_log_probabilities": each.token_log_probabilities.tolist(),
            **({"attention": {site: weights.tolist() for site, weights in each.attention.items()}} if each.attention else {}),
        }
        for text, each in zip(made.texts, made.hypotheses, strict=False)
    ]
    pieces = translator.tokenisers["source"].pieces(made.source_ids)
    return {"line": number, "source": made.source, "source_pieces": pieces, "hypotheses": hypotheses}
