"""`tfkit average`: one model from several of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..view.terminal import shown
from .arguments import Parser, add_common, place, reading, whole
from .output import print_json, print_text
from .packages import TEXT, need_packages

EPILOG = """\
tfkit average runs/en-de --last 5 -o averaged
tfkit average runs/en-de/models/step-800 runs/en-de/models/step-900 -o averaged
Of a run, the weights of its last checkpoints are averaged (`keeping.last` says
how many there are); of models, theirs. All have the same spec and tokenisers."""


def arguments(parser: Parser) -> None:
    parser.add_argument("models", metavar="DIR", nargs="+", type=reading, help="a run, or two models or more")
    parser.add_argument("--last", type=whole, metavar="N", help="of a run: how many checkpoints (default all that are kept)")
    parser.add_argument("-o", "--output", metavar="DIR", type=place, required=True, help="where the averaged model is saved")
    parser.add_argument("--force", action="store_true", help="replace a model that is saved there already")
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    need_packages("train", *TEXT)
    from ..train import average_checkpoints, average_models

    places = [Path(name) for name in options.models]
    output = Path(options.output)
    if len(places) == 1:
        averaged = average_checkpoints(places[0], options.last, output, overwrite=options.force)
    else:
        averaged = average_models(places, output, overwrite=options.force)
    if options.json:
        print_json({"averaged": [str(path) for path in averaged], "directory": str(output)})
    else:
        print_text(shown(f"{output}: the mean of {len(averaged)}: {', '.join(path.name for path in averaged)}"))
    return 0
