"""The command `tfkit`, as a script that torchrun can run in a fork."""

import sys

from tfkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
