"""One command on one hostile input: run in a process with limits, and checked against what a user may expect of it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import warm
from warm import ROOT
from warm.client import ask

CPU_SECONDS = 20
"""The promise is 5 s on a usual machine; a slow one has room, and what does not end meets this limit all the same."""
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, or the signal that ended it."""

    code: int | None
    signal: int | None
    out: str
    err: str

    def wrong(self, refused: bool) -> str:
        """What a user could not accept of it, or nothing. `refused` says that the input must not be accepted."""
        if self.signal is not None:
            return {24: "took too much processor time", 14: "hung"}.get(self.signal, f"died of signal {self.signal}")
        progress = self.err + self.out
        if self.code not in (0, 1, 2, 3):
            return f"exit code {self.code}"
        for bad in ("Traceback", "TFK099", "Exception ignored", "MemoryError", "TFK045"):
            if bad in progress:
                return f"says {bad}: {progress[max(0, progress.index(bad) - 200) :][:600]}"
        if re.search("^TFK000 forged", progress, re.MULTILINE):
            return f"prints a line of an argument as its own: {progress[-300:]!r}"
        if self.code in (0, 3):
            return "was accepted" if refused else ""
        if not re.search(r"TFK\d{3}", progress):
            return f"exit code {self.code} without an error code: {progress[-300:]!r}"
        if found := CONTROL.search(self.err):
            return f"writes the control character {found[0]!r} to standard error: {self.err[:300]!r}"
        if len(self.err) > 60_000:
            return f"writes {len(self.err):,} characters to standard error"
        return ""


class Runner:
    """Starts commands through the warm server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server = folder, warm.server()
        (folder / "line.txt").write_text("which dog\tthe old dog sees the house\n")

    def run(self, words: Sequence[str], cwd: Path, stdin: Path | None = None, seconds: int = CPU_SECONDS) -> Ended:
        paths = [self.folder / "out", self.folder / "err"]
        request = {
            "script": str(Path(__file__).with_name("command.py")), "words": list(words), "cwd": str(cwd),
            "environment": {
                **os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "WARM_SERVER": self.server,
                "CPU_SECONDS": str(seconds),
                "WARM_CLIENT": str(ROOT / "tests" / "warm" / "client.py"),
            },
        }  # fmt: skip
        with open(stdin or self.folder / "line.txt", "rb") as source, open(paths[0], "wb") as out, open(paths[1], "wb") as err:
            answer = ask(self.server, request, (source.fileno(), out.fileno(), err.fileno()))
        read = (path.read_text(encoding="utf-8", errors="backslashreplace") for path in paths)
        return Ended(answer["code"], answer["signal"], *read)


def snapshot(folder: Path, without: Path | None = None) -> dict[str, tuple[object, ...]]:
    """What is in a folder: kinds, sizes and times of change of all names in it, but for the output of a command."""
    found: dict[str, tuple[object, ...]] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            if without is not None and (path == str(without) or path.startswith(f"{without}{os.sep}")):
                continue
            about = os.lstat(path)
            # A change within a directory shows in the names in it; the output of a command comes and goes.
            found[path] = (about.st_mode,) if stat.S_ISDIR(about.st_mode) else (about.st_mode, about.st_size, about.st_mtime_ns)
    return found
