"""`tfkit plugins`: every slot, its entries, and the distribution that provides each."""

from __future__ import annotations

import click

from .options import common
from .output import print_json, print_rich

EPILOG = """\b
--json prints an object with `plugins` (`name`, `distribution`, `version`),
`entries` (`slot`, `name`, `summary`, `reference`, `plugin`, `distribution`,
`version`), `broken` (`plugin`, `distribution`, `reason`), `disabled` (`slot`,
`name`, `distributions`) and `certificates` (`name`, `state`, ...); with
--backends also `backends`, their declared capabilities.

\b
A plugin can ship certificates: files NAME.certificate.json, written by
`tfkit conformance`, beside the module of its entry point. The list says which
are valid for what is installed here. They are statements, not signatures.
"""


@click.command("plugins", epilog=EPILOG)
@click.option("--backends", is_flag=True, help="The capabilities of each attention backend.")
@common
def command(backends: bool, as_json: bool) -> int:
    """List what is installed, slot by slot."""
    from ..catalogue import load_catalogue
    from ..view.plugins_data import backends_data, plugins_data, support_table

    catalogue = load_catalogue()
    data = plugins_data(catalogue)
    if as_json:
        print_json({**data, "backends": backends_data(catalogue)} if backends else data)
        return 0
    from ..view.plugins_text import BackendsText, plugins_text

    print_rich(*([BackendsText(*support_table(catalogue))] if backends else plugins_text(data)))
    return 0
