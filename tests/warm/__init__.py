"""Commands of tfkit in processes of their own that start warm: see `server.py`."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@cache
def server() -> str:
    """The socket of this process' server, which is started by the first call and ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="warm", dir="/tmp")  # the path of a socket has at most 107 characters
    path = f"{folder.name}/socket"
    roots = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, str(HERE / "server.py"), path], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(roots)},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    def close() -> None:
        process.communicate()  # closes its standard input, at which it ends
        folder.cleanup()

    atexit.register(close)
    return path


def patch_children(monkeypatch: pytest.MonkeyPatch, code: Path) -> None:
    """Children of `tfkit conformance` start warm from now on; `code` is a file that is written."""
    from tfkit_conformance.process import parent

    cold = parent.python_command
    code.write_text("import sys; exec(sys.argv[1])")
    monkeypatch.setenv("WARM_SERVER", server())
    client = [sys.executable, "-I", "-S", str(HERE / "client.py"), str(code)]
    monkeypatch.setattr(parent, "python_command", lambda words: [*client, cold(words)[-1]])
