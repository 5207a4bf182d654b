"""`tfkit generate`: a decoder-only model goes on from prompts."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from ..errors import Diagnostic, InputError
from .arguments import Parser, add_common, add_placing, reading, whole
from .output import speak_utf8, standard_input
from .packages import TEXT, need_packages
from .search_args import add_search, add_workers, check_workers, search_of, workers_of

if TYPE_CHECKING:
    from ..text import Continuation

TOKENS = 200
ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
"""How a text that may have several lines is written on one."""
EPILOG = """\
tfkit generate MODEL --prompt "Once upon" --sample --temperature 0.8 --seed 1
MODEL is a directory that `tfkit train` made. Without --prompt every line of
standard input is one; an empty line stays empty. What is printed is the prompt
and its continuation: of a --prompt as it is, with its line breaks; of a line of
standard input as one line, in which \\n is a line break, \\r a carriage return,
\\t a tab and \\\\ a backslash. With --n-best N such a line is: number of the input
line, log-probability, text, with tabs between them. Of a prompt of more tokens
than the model has positions the last ones are read, as many as leave room for
--tokens, and half of the positions at least; such prompts, and texts that end
for want of positions before the --tokens that were written, are named on
standard error.
--json prints one object a line: prompt, continuations (text, log_probability)."""


def arguments(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", type=reading, help="a directory that `tfkit train` made")
    parser.add_argument("--prompt", metavar="TEXT", action="append", help="what to go on from; may be given again")
    parser.add_argument("--tokens", type=whole, metavar="N", help="new tokens at most (default 200)")
    add_search(parser, 1)
    add_workers(parser)
    add_placing(parser)
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    need_packages("train", *TEXT)
    speak_utf8()
    from ..data import groups, lines_of
    from ..text import TextGenerator
    from .device import placed

    search = search_of(options, 1, length_factor=0.0, extra_length=options.tokens or TOKENS)
    workers = workers_of(options)
    generator = TextGenerator.load(options.model, **placed(options))
    check_workers(options, generator.model)
    # All lines at once, for what is drawn for a line depends on its place; where one cannot be read, those before it.
    read = iter([options.prompt]) if options.prompt else groups(lines_of(standard_input(), "<stdin>"), sys.maxsize)
    for prompts in read:
        continued = generator.continue_all(prompts, search, workers=workers)
        _print_all(prompts, continued, options, generator.positions)
    return 0


def _print_all(
    prompts: list[str], continued: list[list[Continuation]], options: argparse.Namespace, positions: int | None
) -> None:
    for number, (prompt, made) in enumerate(zip(prompts, continued, strict=True), 1):
        name = f"prompt {number}" if options.prompt else f"<stdin>:{number}"
        if options.prompt and not made:
            raise InputError(Diagnostic("TFK077", f"{name} is empty", "a decoder needs something to go on from"))
        _tell_ends(name, made, positions, options.tokens)
        if options.json:
            told = [{"text": each.text, "log_probability": each.hypothesis.log_probability} for each in made]
            print(json.dumps({"prompt": prompt, "continuations": told}))
            continue
        texts = [f"{prompt}{each.text}" for each in made] or [prompt]
        if options.prompt:
            print(*texts, sep="\n")
        elif options.n_best == 1:
            print(texts[0].translate(ESCAPES))
        else:
            scores = [f"{each.hypothesis.log_probability:.4f}" for each in made] or [""]
            for text, score in zip(texts, scores, strict=True):
                print(number, score, text.translate(ESCAPES), sep="\t")


def _tell_ends(name: str, made: list[Continuation], positions: int | None, wanted: int | None) -> None:
    """What did not fit into the positions of the model, of a prompt and of the tokens that were `wanted`, on standard error."""
    if made and made[0].cut:
        read, cut = made[0].read, made[0].cut
        ends = f"the last {read:,} were read; the model has {positions:,} positions"
        print(f"{name}: {read + cut:,} tokens, {ends}", file=sys.stderr)
    short = [len(each.hypothesis.ids) for each in made if not each.hypothesis.finished]
    if wanted is not None and short and max(short) < wanted:
        few = f"{max(short):,} of {wanted:,} tokens were made: with {made[0].read:,} of the prompt"
        print(f"{name}: {few} the model has no more positions", file=sys.stderr)
