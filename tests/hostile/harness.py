"""One command on one hostile input: run in a process with limits, and checked against what a user may expect of it."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
            return {24: "took more than 20 s of processor time", 14: "hung"}.get(self.signal, f"died of signal {self.signal}")
        progress = self.err + self.out
        if self.code not in (0, 1, 2, 3):
            return f"exit code {self.code}"
        for bad in ("Traceback", "TFK099", "Exception ignored", "MemoryError", "TFK045"):
            if bad in progress:
                return f"says {bad}: {progress[max(0, progress.index(bad) - 200) :][:600]}"
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
    """Starts commands through `server.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        roots = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py"))], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(roots)},
        )  # fmt: skip
        (folder / "line.txt").write_text("which dog\tthe old dog sees the house\n")

    def run(self, words: Sequence[str], cwd: Path, stdin: Path | None = None) -> Ended:
        out, err = self.folder / "out", self.folder / "err"
        for path in (out, err):
            path.unlink(missing_ok=True)
        request = {
            "words": list(words), "stdin": str(stdin or self.folder / "line.txt"), "cwd": str(cwd),
            "out": str(out), "err": str(err),
        }  # fmt: skip
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        answer = json.loads(self.server.stdout.readline())
        read = (path.read_text(encoding="utf-8", errors="backslashreplace") if path.exists() else "" for path in (out, err))
        return Ended(answer["code"], answer["signal"], *read)

    def close(self) -> None:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()


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
