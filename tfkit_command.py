"""The command `tfkit`. This is no module of the package, so that it runs where another project has replaced the package too."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

OTHER_PROJECT = """\
TFK057 the modules of tfkit were replaced by those of another project: {place}
  fix: pip uninstall tfkit tfkit-core, then install tfkit-core again"""


def main() -> int:
    """Run one command line; returns the exit code."""
    found = find_spec("tfkit")
    place = Path(found.origin) if found and found.origin else None
    if place is None or not place.with_name("distribution.py").is_file() or "lazy_names" not in place.read_text("utf-8"):
        print(OTHER_PROJECT.format(place=place or "there is none"), file=sys.stderr)
        return 1
    from tfkit.cli import main as command

    return command()
