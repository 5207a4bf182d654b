"""`python -m tfkit`: the same as the command `tfkit`, except that Python imports modules from the working directory first. In a
directory that other users can write to, use the command, or `python -P -m tfkit` (Python 3.11)."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
