"""`tfkit generate`: a decoder-only model goes on from prompts."""

from __future__ import annotations

import argparse
import json

from .arguments import Parser, add_backend, add_common, device, whole
from .output import speak_utf8, standard_input
from .packages import TEXT, need_packages
from .searching import add_search, search_of

EPILOG = """\
tfkit generate MODEL --prompt "Once upon" --sample --temperature 0.8 --seed 1
MODEL is a directory that `tfkit train` made. Without --prompt every line of
standard input is one. What is printed is the prompt and its continuation.
--json prints one object a line: prompt, continuations (text, log_probability)."""


def arguments(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a directory that `tfkit train` made")
    parser.add_argument("--prompt", metavar="TEXT", action="append", help="what to go on from; may be given again")
    parser.add_argument("--tokens", type=whole, metavar="N", default=200, help="new tokens at most (default 200)")
    add_search(parser, 1)
    parser.add_argument("--device", type=device, default="cpu", metavar="DEVICE", help="cpu, cuda or cuda:1 (default cpu)")
    add_backend(parser)
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    need_packages("train", *TEXT)
    speak_utf8()
    from ..data import lines_of
    from ..text import TextGenerator
    from .here import check_device

    check_device(options.device)
    search = search_of(options, 1, length_factor=0.0, extra_length=options.tokens)
    generator = TextGenerator.load(options.model, device=options.device, backend=options.backend)
    prompts = options.prompt or list(lines_of(standard_input(), "<stdin>"))
    for prompt, made in zip(prompts, generator.continue_all(prompts, search), strict=True):
        if options.json:
            told = [{"text": each.text, "log_probability": each.hypothesis.log_probability} for each in made]
            print(json.dumps({"prompt": prompt, "continuations": told}))
            continue
        for each in made:
            print(f"{prompt}{each.text}")
    return 0
