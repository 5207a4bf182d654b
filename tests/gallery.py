"""Draws the pictures of `docs/gallery.md` again with the commands that the page shows: `python tests/gallery.py [DIRECTORY]`.

A picture follows its command. A picture of a page is its line view in a browser. Commands that train run first, in a directory
of their own, which is kept if it is named.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from browser import opened

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gallery.md"
SVG = "{http://www.w3.org/2000/svg}"


class Drawn(NamedTuple):
    """A picture of the gallery, and the command that draws it."""

    picture: Path
    command: list[str]

    @property
    def model(self) -> bool:
        """Whether it is drawn from a trained model."""
        return any(word.startswith("runs/") for word in self.command)


def drawings() -> list[Drawn]:
    """The pictures in the order of the page."""
    found = re.findall(r"```sh\n(tfkit .*)\n```\n\n!\[[^\]]+\]\((\S+)\)", PAGE.read_text(encoding="utf-8"))
    return [Drawn(PAGE.parent / picture, shlex.split(command)[1:]) for command, picture in found]


def trainings() -> list[list[str]]:
    """The commands that train the models of the pictures."""
    return [shlex.split(command)[1:] for command in re.findall(r"`(tfkit train [^`]*)`", PAGE.read_text(encoding="utf-8"))]


def structure(picture: Path) -> tuple[Counter[str], list[str]]:
    """The kinds of elements of an SVG with their numbers, and its texts."""
    elements = list(ElementTree.parse(picture).iter())
    texts = [" ".join(each.itertext()).strip() for each in elements if each.tag in (f"{SVG}text", f"{SVG}title")]
    return Counter(each.tag.removeprefix(SVG) for each in elements), texts


def draw(drawn: Drawn, folder: Path) -> None:
    """Run the command of a picture in a directory that holds the models, and write the picture there."""
    output = drawn.command[drawn.command.index("-o") + 1]
    _tfkit([*drawn.command, "--force"], folder)
    if not output.endswith(".html"):
        (folder / output).replace(folder / drawn.picture.name)
        return
    with opened(folder / output, width=900) as page:
        page.get_by_role("radio", name="lines").check()
        page.locator("svg.lines").wait_for()
        page.screenshot(path=folder / drawn.picture.name)


def _tfkit(words: list[str], folder: Path) -> None:
    placed = [re.sub(r"\bspecs/", f"{ROOT}/specs/", word) for word in words]
    subprocess.run([sys.executable, "-m", "tfkit", *placed], cwd=folder, check=True)


def main(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(words[0] if words else temporary).resolve()
        for command in trainings():
            if not (folder / command[command.index("-o") + 1]).exists():
                _tfkit(command, folder)
        for each in drawings():
            draw(each, folder)
            each.picture.write_bytes((folder / each.picture.name).read_bytes())


if __name__ == "__main__":
    main(sys.argv[1:])
