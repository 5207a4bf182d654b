"""`tfkit new`: a plugin to start from, or a copy of a spec or a recipe."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from ..errors import Diagnostic, StoreError
from ..files import write_whole
from ..spec.published import copies, nearest_published, published
from ..starters import STARTERS, Name, check_name, write_starter
from ..view.terminal import shown
from .options import WRITE, OneOf, common
from .output import print_json, print_text
from .usage import usage_error

COPIED = ("spec", "recipe")

EPILOG = f"""\b
SLOT is one of {", ".join(list(STARTERS)[:6])},
{", ".join(list(STARTERS)[6:])}.

\b
tfkit new backend acme.flash          writes ./acme-flash
tfkit new norm acme.tanh -o plugins/tanh

The plugin works as it is: it can be installed, `tfkit plugins` lists it, and
its tests pass. Replace its mathematics with yours.

\b
tfkit new spec transformer-base -o my.yaml
tfkit new recipe sample -o my.yaml    also its text, sample/train.en and .de

A copy of a spec or a recipe that comes with tfkit (`tfkit specs`), to edit.

\b
--json prints an object with `slot`, `name`, `directory`, `files` and `next`,
the commands to run next; of a copy `kind`, `name`, `files` and `next`.
"""


def _name(context: click.Context, parameter: click.Parameter, text: str) -> Name | str:
    """The name of a part, or of a spec or a recipe to copy."""
    if context.params.get("slot") not in COPIED:
        try:
            return check_name(text)
        except ValueError as reason:
            raise click.BadParameter(str(reason), context, parameter) from None
    if text not in published(context.params["slot"]):
        known = nearest_published(text, context.params["slot"]) or "`tfkit specs` lists them"
        raise click.BadParameter(f"there is no {context.params['slot']} `{text[:80]}`; {known}", context, parameter)
    return text


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names of what is copied, for the shell."""
    kind = context.params.get("slot")
    return [name for name in published(kind) if name.startswith(incomplete)] if kind in COPIED else []


def _copy(kind: str, name: str, place: Path, as_json: bool) -> int:
    first, *others = copies(kind, name).items()
    files = {place: first[1], **{place.parent / path: content for path, content in others}}
    for file in files:
        if os.path.lexists(file):
            raise StoreError(Diagnostic("TFK080", f"{file} exists", "name another file: -o FILE"))
        if file.parent != place.parent and file.parent.is_symlink():
            raise StoreError(Diagnostic("TFK080", f"{file.parent} is a link", "name a file in another directory: -o FILE"))
    written: list[Path] = []
    try:
        for file, content in files.items():
            if file is not place:
                file.parent.mkdir(exist_ok=True)
            write_whole(file, content)
            written.append(file)
    except BaseException:
        for file in written:
            file.unlink()
        raise
    then = [f"tfkit check {shlex.quote(str(place))}"]
    if as_json:
        print_json({"kind": kind, "name": name, "files": [str(file) for file in files], "next": then})
    else:
        print_text("\n".join([*map(str, files), "", "Next:", *(f"  {line}" for line in then)]))
    return 0


@click.command("new", epilog=EPILOG)
@click.argument(
    "slot", type=OneOf("slot", [*STARTERS, *COPIED]), is_eager=True, metavar="SLOT|spec|recipe", help="What the plugin adds."
)
@click.argument(
    "name",
    callback=_name,
    shell_complete=_complete,
    help="How specs will name it, with a prefix: acme.flash. Or what is copied.",
)
@click.option("-o", "--output", metavar="PLACE", type=WRITE, help="A new directory (default: the name with hyphens), or file.")
@common
def command(slot: str, name: Name | str, output: str | None, as_json: bool) -> int:
    """Write a plugin to start from, or a copy of a spec or a recipe."""
    if isinstance(name, str):
        place = Path(output or f"{name}.yaml")
        if output and output.endswith("/") and not place.is_dir():
            raise usage_error(f"argument -o: there is no directory {output}", "name a file, or make the directory first")
        return _copy(slot, name, place / f"{name}.yaml" if place.is_dir() else place, as_json)
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
