"""`tfkit plugins`: every slot, what is offered for it, and by whom."""

from __future__ import annotations

import argparse

from .arguments import Parser, add_common
from .output import print_json, print_rich

EPILOG = """\
--json prints an object with `plugins` (`name`, `distribution`, `version`),
`entries` (`slot`, `name`, `summary`, `reference`, `plugin`, `distribution`,
`version`) and `broken` (`plugin`, `distribution`, `reason`); with --backends
also `backends`, their declared capabilities."""


def arguments(parser: Parser) -> None:
    parser.add_argument("--backends", action="store_true", help="what each attention backend can do")
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    from ..catalogue import load_catalogue
    from ..view.plugins_data import backends_data, plugins_data, support_table

    catalogue = load_catalogue()
    data = plugins_data(catalogue)
    if options.json:
        print_json({**data, "backends": backends_data(catalogue)} if options.backends else data)
        return 0
    from ..view.plugins_text import BackendsText, plugins_text

    print_rich(*([BackendsText(*support_table(catalogue))] if options.backends else plugins_text(data)))
    return 0
