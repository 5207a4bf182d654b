"""The command `tfkit`.

Exit codes: 0 fine, 1 a check or a run failed, 2 the input is wrong, 3 incomplete; 130 interrupted, 141 the reader of a pipe
closed it. Data goes to standard output, errors to standard error; with `--json` both are JSON on standard output.
(`tfkit conformance` and `tfkit bench` take `--json FILE`; with `--json -` they write JSON to standard output.)

This module imports nothing heavy, so that an interruption during the imports ends as quietly as any other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: the words after `tfkit`; by default those of the process.

    Returns:
        The exit code. No exception escapes.
    """
    try:
        if argv is None:
            from .interrupts import count_bursts_once

            count_bursts_once()
        from .dispatch import run

        return run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        if sys.stderr is not None:
            with suppress(OSError):
                print("tfkit: interrupted", file=sys.stderr)
        return 130
    finally:
        if argv is None:
            from .interrupts import ignore_further_ones

            ignore_further_ones()
