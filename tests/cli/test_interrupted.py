"""Ctrl-C, also many times at once, ends a command with one line, and does not disturb what it cleans up."""

import subprocess
import sys

import pytest

COMMAND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
import tfkit.catalogue


def interrupted(*words, **more):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        for _ in range(9):
            os.kill(os.getpid(), signal.SIGINT)
        print("cleaned up", flush=True)


tfkit.catalogue.load_catalogue = interrupted
from tfkit.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("command", ["check", "show", "build"])
def test_other_interrupts_leave_what_the_first_cleans_up(command, tmp_path):
    more = ["-o", str(tmp_path / "model")] if command == "build" else []
    words = [sys.executable, "-c", COMMAND, command, "transformer-tiny", *more]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "cleaned up\n", "tfkit: interrupted\n")
