"""What was measured, in a JSON file that processes and machines may share: a section for each environment, of which others than
one's own are never read. It imports neither torch nor Triton.

    {"sections": [{"environment": {"device": "NVIDIA H100", "capability": "9.0", "triton": "3.6.0", "kernels": "5d..."},
                   "choices": {"forward bfloat16 d64 ...": {"tiles": [128, 64, 4, 3], "milliseconds": {...}}}}]}
"""

from __future__ import annotations

import functools
import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from tfkit.plugin import Options


class Environment(Options):
    """What a time depends on beside the call: a figure of another device, Triton or source of the kernels says nothing."""

    device: str
    capability: str
    triton: str
    kernels: str


class Choice(Options):
    """Queries, keys, warps and stages of the fastest tiles, and what each took; None where it did not run, or
    gave other results."""

    tiles: tuple[int, int, int, int]
    milliseconds: dict[str, float | None]

    def __str__(self) -> str:
        times = (
            f"{tiles}: {f'{time:.3f} ms' if time is not None else 'unusable'}" for tiles, time in self.milliseconds.items()
        )
        return f"{'x'.join(map(str, self.tiles[:2]))}, {self.tiles[2]} warps, {self.tiles[3]} stages ({'; '.join(times)})"


class Section(Options):
    """What was measured in one environment, by the class of the calls."""

    environment: Environment
    choices: dict[str, Choice]


class File(Options):
    """All that the file holds."""

    sections: tuple[Section, ...] = ()


Sections = dict[Environment, dict[str, Choice]]


def place() -> Path:
    """TFKIT_FUSED_TUNED, or tfkit/fused.json in the user's cache directory."""
    named = os.environ.get("TFKIT_FUSED_TUNED")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(named) if named else Path(cache, "tfkit", "fused.json")


@functools.cache
def source() -> str:
    """A digest of what is compiled and launched."""
    here = Path(__file__).parent
    files = (*sorted((here / "kernels").glob("*.py")), here / "tiles.py", here / "launch.py")
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def read(path: Path) -> tuple[Sections, str]:
    """What the file holds, and what is damaged about it, in which case that is nothing. Raises OSError where it is there and
    cannot be read."""
    try:
        file = File.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}, ""
    except ValidationError as reason:
        first = reason.errors(include_url=False)[0]
        return {}, ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    return {section.environment: dict(section.choices) for section in file.sections}, ""


class Saved:
    """The choices of one environment in the file: read once, written whole, merged with what others wrote meanwhile."""

    def __init__(self, path: Path, environment: Environment) -> None:
        self.path, self.environment = path, environment
        self.warned: set[str] = set()

    @functools.cached_property
    def choices(self) -> dict[str, Choice]:
        """As they were when they were first asked for."""
        try:
            return self._sections().get(self.environment, {})
        except OSError as reason:
            self._tell(f"could not be read ({reason.strerror}): nothing that was measured is known")
            return {}

    def add(self, call_class: str, choice: Choice) -> Choice:
        """What counts from now on: the choice, or one that another process wrote before."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(self.path.with_name(f"{self.path.name}.lock")):
                sections = self._sections()
                choice = sections.setdefault(self.environment, {}).setdefault(call_class, choice)
                self._write(sections)
        except OSError as reason:
            self._tell(f"could not be written ({reason.strerror}): what is measured counts for this process alone")
        return choice

    def _sections(self) -> Sections:
        sections, damage = read(self.path)
        if damage:
            self._tell(f"is damaged and not used ({damage}): the next measurement replaces it")
        return sections

    def _write(self, sections: Sections) -> None:
        file = File(
            sections=tuple(Section(environment=environment, choices=choices) for environment, choices in sections.items())
        )
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            draft.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
            os.replace(draft, self.path)
        finally:
            draft.unlink(missing_ok=True)

    def _tell(self, what: str) -> None:
        if what not in self.warned:
            self.warned.add(what)
            warnings.warn(f"`fused`: {self.path} {what}", stacklevel=2)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Until the block ends, other processes wait here."""
    import fcntl  # not everywhere that `show` may run, but where Triton is

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
