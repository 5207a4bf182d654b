"""`tfkit new`: a plugin to start from."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ..starters import STARTERS, Name, check_name, write_starter
from ..view.terminal import shown
from .options import WRITE, OneOf, common
from .output import print_json, print_text
from .usage import usage_error

EPILOG = f"""\b
SLOT is one of {", ".join(list(STARTERS)[:6])},
{", ".join(list(STARTERS)[6:])}.

\b
tfkit new backend acme.flash          writes ./acme-flash
tfkit new norm acme.tanh -o plugins/tanh

The plugin works as it is: it can be installed, `tfkit plugins` lists it, and
its tests pass. Replace its mathematics with yours.

\b
--json prints an object with `slot`, `name`, `directory`, `files` and `next`,
the commands to run next.
"""


@click.command("new", epilog=EPILOG)
@click.argument("slot", type=OneOf("slot", list(STARTERS)), help="What the plugin adds.")
@click.argument("name", type=check_name, help="How specs will name it, with a prefix: acme.flash.")
@click.option("-o", "--output", metavar="DIR", type=WRITE, help="A new directory (default: the name with hyphens).")
@common
def command(slot: str, name: Name, output: str | None, as_json: bool) -> int:
    """Write a plugin to start from: declaration, mathematics, tests."""
    from ..catalogue import load_catalogue
    from ..starters.starter import proof, taken

    other = taken(slot, name, load_catalogue())
    if other:
        raise usage_error(f"the name `{name.part}` is taken: {other}", "choose another name, or uninstall that plugin")
    directory = Path(output or name.distribution)
    files = write_starter(slot, name, directory)
    then = [f"cd {shlex.quote(str(directory))}", "pip install -e .", proof(slot, name), "pytest"]
    if as_json:
        print_json({"slot": slot, "name": name.part, "directory": str(directory), "files": files, "next": then})
    else:
        lines = [f"{directory}:", *(f"  {file}" for file in files), "", "Next:", *(f"  {line}" for line in then)]
        print_text("\n".join(map(shown, lines)))
    return 0
