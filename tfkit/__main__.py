"""`python -m tfkit`: the same as the command `tfkit`, except that Python looks for modules in the working directory first, as
for every `python -m`. In a directory that others can write to, use the command, or `python -P -m tfkit` (Python 3.11)."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
