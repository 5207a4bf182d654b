"""`python -m tfkit`: the same as the command `tfkit`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
