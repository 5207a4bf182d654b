"""The name under which pip knows tfkit. The project `tfkit` of the public package index is another one, with modules of the
same names: no line that tfkit prints may make pip install it."""

from __future__ import annotations

import json
import shlex
from functools import cache
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "tfkit-core"
OTHER = "tfkit"
"""The name of the other project, and the former name of this one."""
GROUP = "tfkit"
"""The entry-point group of plugins."""


def install_line(*extras: str) -> str:
    """The command that installs extras of tfkit. The conformance suite comes from the clone that tfkit came from, if there is
    one: no index need have it."""
    suite = _clone() / "plugins" / "tfkit-conformance"
    if extras == ("conformance",) and (suite / "pyproject.toml").is_file():
        return f"pip install {shlex.quote(str(suite))}"
    return f"pip install '{NAME}[{','.join(extras)}]'"


def installed() -> Distribution:
    """The metadata of this installation. Raises PackageNotFoundError if tfkit is imported but not installed."""
    former = _former()
    return former if former is not None and _named(NAME) is None else distribution(NAME)


@cache
def version() -> str:
    """The version of this installation. Raises PackageNotFoundError if tfkit is imported but not installed."""
    return installed().version


def reinstall_line(name: str) -> str:
    """The command that installs a distribution again: from where it came, if pip recorded that. Its name on an index may be
    another project's."""
    return f"pip install --force-reinstall --no-deps {shlex.quote(_source(name) or name)}"


def other_project() -> tuple[str, str] | None:
    """What is wrong, and the fix, if a second distribution has the modules of tfkit; otherwise None."""
    other, ours = _named(OTHER), _named(NAME)
    if other is None or (ours is None and _former()):
        return None
    text = "it is another project" if _former() is None else "it is the former name of tfkit"
    what = f"the package `{OTHER}` {other.version} is installed; {text}, with modules of the same names as `{NAME}`"
    return what, f"pip uninstall {OTHER} {NAME}, then install {NAME} again"


def is_installed_twice(point: EntryPoint) -> bool:
    """Whether an entry point is of tfkit's former name, and its plugin is also installed under the present one."""
    return point.dist is not None and point.dist.name == OTHER and _former() is not None and _named(NAME) is not None


def _source(name: str) -> str:
    """The path or address that pip installed a distribution from; empty if it recorded none."""
    ours = _named(name)
    record = None if ours is None else ours.read_text("direct_url.json")
    url = json.loads(record or "{}").get("url", "")
    return url2pathname(urlsplit(url).path) if url.startswith("file:") else url


def _clone() -> Path:
    """The directory that tfkit was installed from, or that its package is in."""
    return Path(_source(NAME) or Path(__file__).parents[1])


def _named(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _former() -> Distribution | None:
    """tfkit, installed under its former name."""
    other = _named(OTHER)
    points = () if other is None else other.entry_points
    return other if any(point.group == GROUP and point.value == "tfkit.builtin" for point in points) else None
